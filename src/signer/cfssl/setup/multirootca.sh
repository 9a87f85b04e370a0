# One server for all CAs:
#   multirootca -a :8888 -roots roots.ini -tls-cert server.crt -tls-key server.key
