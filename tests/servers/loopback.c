// estserver listens on every address and has no option to change that. This library, preloaded, binds it to loopback.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int bind(int fd, const struct sockaddr *wanted, socklen_t length)
{
    struct sockaddr_in local;

    if (wanted->sa_family == AF_INET && length == sizeof local) {
        local = *(const struct sockaddr_in *)wanted;
        local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        wanted = (const struct sockaddr *)&local;
    }
    return (int)syscall(SYS_bind, fd, wanted, length);
}
