/* Runs a command, and measures the time from its start until a web server first answers with 200.
 *
 *   first-answer at ADDRESS PORT COMMAND...       the address is known
 *   first-answer new SOCKET PATH PORT COMMAND...  the address is that of the first new instance that the list
 *                                                 PATH of KAT's API, watched at SOCKET, names after the start
 *
 * Prints the milliseconds, with one decimal. Each attempt is a connection of its own: at most 5 ms to connect and
 * 100 ms to answer, and 1 ms of rest before the next. The clock starts just before the command's process is
 * made. Exit codes: 0 answered, 1 nothing answered within 30 s or the command failed, 2 wrong usage.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CONNECT_MS = 5, ANSWER_MS = 100, REST_US = 1000, LIMIT_MS = 30000, SETTLE_MS = 300, KNOWN = 256 };

static char known[KNOWN][16], buffer[1 << 20];
static size_t known_count, have;

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1000 + (double)time.tv_nsec / 1e6;
}

/* Waits for an event until a point in time. */
static int waits(int descriptor, short events, double limit) {
    struct pollfd waiting = {.fd = descriptor, .events = events};
    double left = limit - now_ms();
    return left > 0 && poll(&waiting, 1, left < 1 ? 1 : (int)left) == 1;
}

/* One request: 1 when the answer is 200. */
static int ask(const struct sockaddr_in *target) {
    static const char request[] = "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    char answer[64] = "";
    size_t got = 0;
    int error = 0, connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), answered = 0;
    socklen_t size = sizeof error;
    if (connection < 0) return 0;
    if (connect(connection, (const struct sockaddr *)target, sizeof *target) && errno != EINPROGRESS) goto end;
    if (!waits(connection, POLLOUT, now_ms() + CONNECT_MS)) goto end;
    if (getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &size) || error) goto end;
    if (write(connection, request, sizeof request - 1) != (ssize_t)sizeof request - 1) goto end;
    for (double limit = now_ms() + ANSWER_MS; got < 12 && waits(connection, POLLIN, limit);) {
        ssize_t count = read(connection, answer + got, sizeof answer - 1 - got);
        if (count <= 0) break;
        got += (size_t)count;
    }
    answered = got >= 12 && !strncmp(answer, "HTTP/1.", 7) && !strncmp(answer + 8, " 200", 4);
end:
    close(connection);
    return answered;
}

/* The list as the API writes it: an address is known by its key "ip". Says which one is new. */
static const char *new_address(void) {
    for (char *at = buffer; (at = strstr(at, "\"ip\":"));) {
        char address[16];
        at += 5;
        if (sscanf(at, " \"%15[0-9.]\"", address) != 1) continue;
        size_t index = 0;
        while (index < known_count && strcmp(known[index], address)) index++;
        if (index < known_count || known_count == KNOWN) continue;
        return strcpy(known[known_count++], address);
    }
    return NULL;
}

/* Reads what has come of the watch, keeping the last line that is not whole. */
static int read_watch(int watch) {
    char *end = strrchr(buffer, '\n');
    if (end) {
        have -= (size_t)(end + 1 - buffer);
        memmove(buffer, end + 1, have + 1);
    }
    if (have >= sizeof buffer - 1) return 0;
    ssize_t count = read(watch, buffer + have, sizeof buffer - 1 - have);
    if (count > 0) have += (size_t)count;
    buffer[have] = 0;
    return count > 0;
}

static int open_watch(const char *path, const char *list) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int watch = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (watch < 0 || strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    if (connect(watch, (struct sockaddr *)&address, sizeof address)) return -1;
    if (dprintf(watch, "GET %s?watch=true HTTP/1.1\r\nHost: kat\r\n\r\n", list) < 0) return -1;
    if (!waits(watch, POLLIN, now_ms() + 5000) || !read_watch(watch) || strncmp(buffer, "HTTP/1.1 200", 12)) return -1;
    do {
        while (new_address()) {}
    } while (waits(watch, POLLIN, now_ms() + SETTLE_MS) && read_watch(watch));
    return watch;
}

int main(int count, char **arguments) {
    struct sockaddr_in target = {.sin_family = AF_INET};
    int watch = -1, ready = 0, first = 0, ended = 0, status = 0;
    if (count >= 5 && !strcmp(arguments[1], "at")) {
        first = 4;
        ready = inet_pton(AF_INET, arguments[2], &target.sin_addr) == 1;
    } else if (count >= 6 && !strcmp(arguments[1], "new")) {
        first = 5;
        watch = open_watch(arguments[2], arguments[3]);
        if (watch < 0) {
            fprintf(stderr, "can't watch %s at %s\n", arguments[3], arguments[2]);
            return 1;
        }
    }
    if (!first || (watch < 0 && !ready)) {
        fprintf(stderr, "first-answer at ADDRESS PORT COMMAND... | new SOCKET PATH PORT COMMAND...\n");
        return 2;
    }
    target.sin_port = htons((uint16_t)atoi(arguments[first - 1]));

    double began = now_ms(), took = 0;
    pid_t child = fork();
    if (child == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        execvp(arguments[first], arguments + first);
        _exit(127);
    }
    if (child < 0) return 1;
    while (!took && now_ms() - began < LIMIT_MS) {
        if (!ready && waits(watch, POLLIN, now_ms() + 1)) {
            if (!read_watch(watch)) break;
            const char *address = new_address();
            ready = address && inet_pton(AF_INET, address, &target.sin_addr) == 1;
        }
        if (ready && ask(&target)) took = now_ms() - began;
        if (!took && !ended && waitpid(child, &status, WNOHANG) == child) ended = 1;
        if (ended && status) break;
        if (!took && ready) usleep(REST_US);
    }
    if (!ended && took) waitpid(child, &status, 0);
    if (!took || status) {
        fprintf(stderr, "%s\n", status ? "the command failed" : ready ? "nothing answered" : "no new instance was named");
        if (!ended) kill(child, SIGTERM);
        return 1;
    }
    printf("%.1f\n", took);
    return 0;
}
