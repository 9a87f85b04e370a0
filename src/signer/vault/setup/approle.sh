# Write to the node, into files of mode 0600:
#   "$VAULT" read -field=role_id @ROLE_WORD@/role-id   # into @ROLE_FILE_TEXT@
