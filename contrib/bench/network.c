/* What a way through the network carries.
 *
 *   network serve PORT                    takes what comes, and sends back what it is asked to
 *   network stream ADDRESS PORT SECONDS   sends as much as goes over one connection: Gbit/s
 *   network ping ADDRESS PORT COUNT       64 bytes there and back on one connection: median, microseconds
 *   network open ADDRESS PORT COUNT       the same on a new connection each time, its opening included
 *   network dns SERVER NAME SECONDS       32 questions at a time for the name's addresses: answers in a second
 *
 * Each prints one number. Exit codes: 0 done, 1 something failed, 2 wrong usage.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 128 * 1024, PING = 64, WINDOW = 32 };

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void fail(const char *what) {
    fprintf(stderr, "network: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct sockaddr_in at(const char *address, long port) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, address, &place.sin_addr) != 1) {
        fprintf(stderr, "network: %s is no address\n", address);
        exit(2);
    }
    return place;
}

/* Reads exactly so many bytes; 0 where the other side ended before. */
static int take(int connection, char *buffer, size_t length) {
    for (size_t have = 0; have < length;) {
        ssize_t got = read(connection, buffer + have, length - have);
        if (got <= 0) return 0;
        have += (size_t)got;
    }
    return 1;
}

static void *serve_one(void *argument) {
    int connection = (int)(intptr_t)argument;
    char *buffer = malloc(BLOCK), kind;
    if (buffer && read(connection, &kind, 1) == 1) {
        if (kind == 's') {
            ssize_t got;
            uint64_t sum = 0;
            while ((got = read(connection, buffer, BLOCK)) > 0) sum += (uint64_t)got;
            if (write(connection, &sum, sizeof sum) != sizeof sum) perror("network: the sum");
        } else {
            while (take(connection, buffer, PING) && write(connection, buffer, PING) == PING) {}
        }
    }
    free(buffer);
    close(connection);
    return NULL;
}

_Noreturn static void serve(long port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    struct sockaddr_in place = at("0.0.0.0", port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&place, sizeof place) || listen(listener, 1024)) fail("listen");
    for (;;) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) continue;
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)connection)) close(connection);
        else pthread_detach(thread);
    }
}

static int reach(const char *address, long port, char kind) {
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    struct sockaddr_in place = at(address, port);
    struct timeval patience = {.tv_sec = 10};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(connection, (struct sockaddr *)&place, sizeof place)) fail("connect");
    if (write(connection, &kind, 1) != 1) fail("write");
    return connection;
}

/* What counts is what the other side has taken, and the time until it says so. */
static double stream(const char *address, long port, long seconds) {
    static char block[BLOCK];
    int connection = reach(address, port, 's');
    double began = now_us(), end = began + (double)seconds * 1e6;
    while (now_us() < end)
        if (write(connection, block, sizeof block) <= 0) fail("write");
    uint64_t taken = 0;
    shutdown(connection, SHUT_WR);
    if (!take(connection, (char *)&taken, sizeof taken)) fail("the sum");
    close(connection);
    return (double)taken * 8 / 1e3 / (now_us() - began);
}

static int by_size(const void *left, const void *right) {
    double one = *(const double *)left, other = *(const double *)right;
    return (one > other) - (one < other);
}

static double rounds(const char *address, long port, long count, int anew) {
    char buffer[PING] = "";
    double *times = calloc((size_t)count, sizeof *times);
    if (!times) fail("memory");
    int connection = anew ? -1 : reach(address, port, 'p');
    for (long i = 0; i < count; i++) {
        double began = now_us();
        if (anew) connection = reach(address, port, 'p');
        if (write(connection, buffer, PING) != PING || !take(connection, buffer, PING)) fail("exchange");
        times[i] = now_us() - began;
        if (anew) close(connection);
    }
    qsort(times, (size_t)count, sizeof *times, by_size);
    double median = times[count / 2];
    free(times);
    return median;
}

static double dns(const char *server, const char *name, long seconds) {
    unsigned char question[300] = {0, 0, 1, 0, 0, 1}, answer[1500];
    size_t length = 12;
    for (const char *label = name; *label;) {
        size_t size = strcspn(label, ".");
        if (!size || size > 63 || length + size + 6 > sizeof question) {
            fprintf(stderr, "network: %s is no name\n", name);
            exit(2);
        }
        question[length++] = (unsigned char)size;
        memcpy(question + length, label, size);
        length += size;
        label += size + (label[size] == '.');
    }
    question[length + 2] = question[length + 4] = 1;
    length += 5;
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in place = at(server, 53);
    struct timeval patience = {.tv_sec = 2};
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(sock, (struct sockaddr *)&place, sizeof place)) fail("connect");
    long answers = 0;
    for (long i = 0; i < WINDOW; i++)
        if (send(sock, question, length, 0) < 0) fail("send");
    double began = now_us(), end = began + (double)seconds * 1e6;
    while (now_us() < end) {
        ssize_t got = recv(sock, answer, sizeof answer, 0);
        if (got < 12) fail("an answer");
        if ((answer[3] & 15) || !answer[7]) {
            fprintf(stderr, "network: %s has no address\n", name);
            exit(1);
        }
        answers++;
        if (send(sock, question, length, 0) < 0) fail("send");
    }
    close(sock);
    return (double)answers * 1e6 / (now_us() - began);
}

int main(int count, char **words) {
    const char *what = count > 2 ? words[1] : "";
    if (count == 3 && !strcmp(what, "serve")) serve(strtol(words[2], NULL, 10));
    if (count == 5 && !strcmp(what, "dns")) {
        printf("%.0f\n", dns(words[2], words[3], strtol(words[4], NULL, 10)));
        return 0;
    }
    if (count == 5) {
        long port = strtol(words[3], NULL, 10), amount = strtol(words[4], NULL, 10);
        if (amount > 0 && !strcmp(what, "stream")) return printf("%.4f\n", stream(words[2], port, amount)) < 0;
        if (amount > 0 && !strcmp(what, "ping")) return printf("%.1f\n", rounds(words[2], port, amount, 0)) < 0;
        if (amount > 0 && !strcmp(what, "open")) return printf("%.1f\n", rounds(words[2], port, amount, 1)) < 0;
    }
    fprintf(stderr, "network serve PORT | stream ADDRESS PORT SECONDS | ping|open ADDRESS PORT COUNT | dns SERVER NAME SECONDS\n");
    return 2;
}
