/* Prints the addresses of a name as c-ares finds them: with a second word, by EDNS. */
#include <ares.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/select.h>

static int status = ARES_ENOTINITIALIZED;

static void tell(void *unused, int ended, int timeouts, struct ares_addrinfo *found)
{
    struct ares_addrinfo_node *next;
    (void)unused, (void)timeouts;
    status = ended;
    for (next = found ? found->nodes : 0; next; next = next->ai_next) {
        char text[NI_MAXHOST];
        if (!getnameinfo(next->ai_addr, next->ai_addrlen, text, sizeof text, 0, 0, NI_NUMERICHOST))
            puts(text);
    }
    if (found)
        ares_freeaddrinfo(found);
}

int main(int count, char **words)
{
    struct ares_options options = { .flags = ARES_FLAG_EDNS, .ednspsz = 1232 };
    struct ares_addrinfo_hints hints = { .ai_family = AF_UNSPEC };
    int mask = count == 3 ? ARES_OPT_FLAGS | ARES_OPT_EDNSPSZ : 0;
    ares_channel channel;
    if (count < 2 || ares_library_init(ARES_LIB_INIT_ALL) || ares_init_options(&channel, &options, mask))
        return 2;
    ares_getaddrinfo(channel, words[1], 0, &hints, tell, 0);
    for (;;) {
        fd_set readers, writers;
        struct timeval patience;
        FD_ZERO(&readers);
        FD_ZERO(&writers);
        int open = ares_fds(channel, &readers, &writers);
        if (!open)
            break;
        select(open, &readers, &writers, 0, ares_timeout(channel, 0, &patience));
        ares_process(channel, &readers, &writers);
    }
    if (status)
        fprintf(stderr, "%s\n", ares_strerror(status));
    return status ? 2 : 0;
}
