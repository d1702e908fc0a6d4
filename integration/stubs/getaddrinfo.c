/* Prints the addresses of a name as the C library finds them: glibc's way or musl's, as it is linked. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>

int main(int count, char **words)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *found, *next;
    int failed = count == 2 ? getaddrinfo(words[1], 0, &hints, &found) : EAI_NONAME;
    if (failed) {
        fprintf(stderr, "%s\n", gai_strerror(failed));
        return 2;
    }
    for (next = found; next; next = next->ai_next) {
        char text[NI_MAXHOST];
        if (!getnameinfo(next->ai_addr, next->ai_addrlen, text, sizeof text, 0, 0, NI_NUMERICHOST))
            puts(text);
    }
    return 0;
}
