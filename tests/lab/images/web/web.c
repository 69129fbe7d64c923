/* The program of the lab's images, and the load that asks it. Static, so that an image is one file.
 *
 *   web                                         serves HTTP on $PORT (8080)
 *   web load ADDRESS PORT RATE SECONDS [STOP [KEPT]]
 *                                               asks it RATE times a second, until SECONDS have passed or the
 *                                               file STOP exists and so many were sent as it says; prints counts.
 *                                               ADDRESS may be NAME@SERVER: then each new connection first asks that
 *                                               DNS server for the name. With KEPT so many connections are kept, and
 *                                               asked in turn, each until an answer says that it is the last
 *
 * GET /           one line: host, uid, $VERSION, and how many requests it answered
 * GET /caller     the address of whom it answers, as it sees it
 * GET /metrics    how many requests for / it answered, as Prometheus reads it
 * GET /env?NAME   the value of a variable; 404 when it is not set
 * GET /crash?N    answers, writes two lines to stderr, and exits with N
 * GET /eat?N      takes N MiB of memory, keeps it, and answers
 * GET /fail       500
 * GET /ill, /well say how it is from now on with /healthz, which answers 503 or 200; it begins well
 * GET /slow?N     answers after N milliseconds
 * GET /read?PATH  reads the first byte of a file, and answers; 500 when that fails
 *
 * It keeps a connection whose request says so. On SIGTERM it goes on for $DRAIN_MS (500) milliseconds, so that
 * whoever still comes is answered, and told that this is the last answer of the connection; then it exits with 0,
 * and says how many it has answered. With $ILL it begins ill, and with $UDP it also answers datagrams on its port.
 * With $TRACE the load prints a line for each request: when it began and when it ended, in milliseconds since 1970, and "ok"
 * or what went wrong. $PATIENCE_MS is the time that it gives a request, five seconds by default.
 * The load opens a connection for each request unless it keeps them, at fixed times whatever became of those
 * before, and tries nothing twice, unless $RETRY_MS is set: then each request is tried anew on a new connection for that
 * time, and counts once, from its first try to its end. It says how many took longer than one: that is the
 * machine's business where its host is busy, and no loss.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static atomic_long answered, in_flight, ok, failed, late, opened;
static atomic_int ill;
/* When the program ends, in milliseconds; 0 until it is asked to. */
static atomic_llong ends;
static volatile sig_atomic_t terminated;

static void on_signal(int number) { (void)number; terminated = 1; }

static int64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static int64_t clock_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static long number(const char *text, long fallback) {
    char *end;
    if (!text || !*text) return fallback;
    long value = strtol(text, &end, 10);
    return *end ? fallback : value;
}

static void reply(int connection, int kept, const char *status, const char *body) {
    char text[4096];
    int length = snprintf(text, sizeof text,
        "HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\nConnection: %s\r\n\r\n%s",
        status, strlen(body), kept ? "keep-alive" : "close", body);
    if (length > 0 && length < (int)sizeof text && write(connection, text, (size_t)length) != length)
        fprintf(stderr, "an answer was cut short\n");
}

/* The next request of a connection; 0 where there is none. A kept one is waited for until the program ends. */
static size_t read_request(int connection, int64_t limit, char *request, size_t size) {
    size_t have = 0;
    while (have < size - 1 && !strstr(request, "\r\n\r\n")) {
        struct pollfd waiting = {.fd = connection, .events = POLLIN};
        int64_t end = atomic_load(&ends);
        if (poll(&waiting, 1, 50) == 0) {
            if (now_ms() >= limit || (!have && end && now_ms() >= end)) break;
            continue;
        }
        ssize_t got = read(connection, request + have, size - 1 - have);
        if (got <= 0) break;
        have += (size_t)got;
        request[have] = 0;
    }
    return have;
}

/* Answers one request; whether the connection is kept. */
static int answer(int connection, const char *request, size_t have) {
    char path[1024] = "", body[2048];
    int kept = strstr(request, "Connection: keep-alive") && !terminated;
    if (sscanf(request, "GET %1023s", path) != 1) {
        if (have) reply(connection, kept, "400 Bad Request", "expected GET\n");
    } else if (!strncmp(path, "/env?", 5)) {
        const char *value = getenv(path + 5);
        snprintf(body, sizeof body, "%s\n", value ? value : "not set");
        reply(connection, kept, value ? "200 OK" : "404 Not Found", body);
    } else if (!strcmp(path, "/caller")) {
        struct sockaddr_in caller = {0};
        socklen_t length = sizeof caller;
        getpeername(connection, (struct sockaddr *)&caller, &length);
        snprintf(body, sizeof body, "%s\n", inet_ntoa(caller.sin_addr));
        reply(connection, kept, "200 OK", body);
    } else if (!strcmp(path, "/metrics")) {
        snprintf(body, sizeof body, "# TYPE web_answered_total counter\nweb_answered_total %ld\n", atomic_load(&answered));
        reply(connection, kept, "200 OK", body);
    } else if (!strncmp(path, "/crash", 6)) {
        reply(connection, kept, "200 OK", "crashing\n");
        fprintf(stderr, "something is wrong here\ngiving up as asked\n");
        close(connection);
        _exit((int)number(path[6] == '?' ? path + 7 : "", 1));
    } else if (!strncmp(path, "/eat?", 5)) {
        size_t size = (size_t)number(path + 5, 0) << 20;
        volatile char *taken = malloc(size);
        for (size_t at = 0; taken && at < size; at += 4096) taken[at] = 1;
        reply(connection, kept, taken ? "200 OK" : "507 Insufficient Storage", taken ? "eaten\n" : "there is no more\n");
    } else if (!strcmp(path, "/fail")) {
        reply(connection, kept, "500 Internal Server Error", "failed as asked\n");
    } else if (!strcmp(path, "/ill") || !strcmp(path, "/well")) {
        atomic_store(&ill, path[1] == 'i');
        reply(connection, kept, "200 OK", "as asked\n");
    } else if (!strcmp(path, "/healthz")) {
        int is_ill = atomic_load(&ill);
        reply(connection, kept, is_ill ? "503 Service Unavailable" : "200 OK", is_ill ? "ill\n" : "well\n");
    } else if (!strncmp(path, "/slow?", 6)) {
        usleep((useconds_t)number(path + 6, 0) * 1000);
        reply(connection, kept, "200 OK", "at last\n");
    } else if (!strncmp(path, "/read?", 6)) {
        char first;
        int opened = open(path + 6, O_RDONLY | O_CLOEXEC);
        int is_read = opened >= 0 && read(opened, &first, 1) == 1;
        if (opened >= 0) close(opened);
        reply(connection, kept, is_read ? "200 OK" : "500 Internal Server Error", is_read ? "read\n" : "not read\n");
    } else if (!strcmp(path, "/")) {
        struct utsname host;
        const char *version = getenv("VERSION");
        uname(&host);
        snprintf(body, sizeof body, "host=%s uid=%u version=%s requests=%ld\n", host.nodename,
            (unsigned)getuid(), version ? version : "-", atomic_fetch_add(&answered, 1) + 1);
        reply(connection, kept, "200 OK", body);
    } else {
        reply(connection, kept, "404 Not Found", "no such page\n");
    }
    return kept;
}

static void *serve_one(void *argument) {
    int connection = (int)(intptr_t)argument;
    char request[2048];
    size_t have;
    struct timeval patience = {.tv_sec = 2};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int64_t wait = 2000;
    do {
        request[0] = 0;
        have = read_request(connection, now_ms() + wait, request, sizeof request);
        wait = 60000;
    } while (answer(connection, request, have));
    shutdown(connection, SHUT_WR);
    while (read(connection, request, sizeof request) > 0) {}
    close(connection);
    atomic_fetch_sub(&in_flight, 1);
    return NULL;
}

static int spawn(void *(*work)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 128 * 1024);
    int error = pthread_create(&thread, &attributes, work, argument);
    pthread_attr_destroy(&attributes);
    return error;
}

/* Answers each datagram with the host's name, until the program ends. */
static void *serve_datagrams(void *argument) {
    int waiting = (int)(intptr_t)argument;
    for (;;) {
        char asked[512], answer[300];
        struct sockaddr_in caller;
        socklen_t size = sizeof caller;
        struct utsname host;
        if (recvfrom(waiting, asked, sizeof asked, 0, (struct sockaddr *)&caller, &size) < 0 || uname(&host)) continue;
        int length = snprintf(answer, sizeof answer, "host=%s\n", host.nodename);
        (void)!sendto(waiting, answer, (size_t)length, 0, (struct sockaddr *)&caller, size);
    }
    return NULL;
}

static int serve(void) {
    long port = number(getenv("PORT"), 8080), drain = number(getenv("DRAIN_MS"), 500);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) {
        fprintf(stderr, "can't listen on port %ld: %s\n", port, strerror(errno));
        return 1;
    }
    if (getenv("UDP")) {
        int datagrams = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (bind(datagrams, (struct sockaddr *)&address, sizeof address) || spawn(serve_datagrams, (void *)(intptr_t)datagrams)) {
            fprintf(stderr, "can't serve UDP on port %ld: %s\n", port, strerror(errno));
            return 1;
        }
    }
    printf("listening on port %ld as uid %u\n", port, (unsigned)getuid());
    atomic_store(&ill, getenv("ILL") != NULL);
    int64_t end = 0;
    for (;;) {
        if (terminated && !end) {
            printf("draining for %ld ms\n", drain);
            end = now_ms() + drain;
            atomic_store(&ends, end);
        }
        if (end && now_ms() >= end) break;
        struct pollfd waiting = {.fd = listener, .events = POLLIN};
        if (poll(&waiting, 1, 50) <= 0) continue;
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) continue;
        atomic_fetch_add(&in_flight, 1);
        if (spawn(serve_one, (void *)(intptr_t)connection)) {
            atomic_fetch_sub(&in_flight, 1);
            close(connection);
        }
    }
    close(listener);
    for (int64_t limit = now_ms() + 5000; atomic_load(&in_flight) && now_ms() < limit;) usleep(1000);
    printf("answered %ld requests\n", atomic_load(&answered));
    return 0;
}

static struct sockaddr_in target, name_server;
static int64_t patience, retried;
static int traced;
static unsigned char question[300];
static size_t question_size;

/* Makes the question for the A records of a name (RFC 1035, 4.1); 0 when it is no name. */
static int make_question(const char *name) {
    static const unsigned char head[12] = {0, 0, 1, 0, 0, 1}, tail[5] = {0, 0, 1, 0, 1};
    size_t at = sizeof head;
    memcpy(question, head, sizeof head);
    while (*name) {
        size_t label = strcspn(name, ".");
        if (label < 1 || label > 63 || at + label + 1 + sizeof tail > sizeof question) return 0;
        question[at] = (unsigned char)label;
        memcpy(question + at + 1, name, label);
        at += label + 1;
        name += label + (name[label] == '.');
    }
    memcpy(question + at, tail, sizeof tail);
    question_size = at + sizeof tail;
    return at > sizeof head;
}

/* The first A record of an answer; 0 when there is none. */
static int read_answer(const unsigned char *packet, size_t size, struct in_addr *address) {
    if (size < question_size || packet[3] & 15 || memcmp(packet + 12, question + 12, question_size - 12)) return 0;
    for (size_t at = question_size; at + 12 <= size;) {
        /* A name is labels, and then a pointer or the end: `at` comes to the last two bytes of a name of either kind. */
        while (at < size && packet[at] && packet[at] < 0xc0) at += (size_t)packet[at] + 1;
        if (at < size && !packet[at]) at--;
        if (at + 12 > size) return 0;
        size_t length = (size_t)packet[at + 10] << 8 | packet[at + 11];
        if (packet[at + 2] == 0 && packet[at + 3] == 1 && length == 4 && at + 16 <= size) {
            memcpy(address, packet + at + 12, 4);
            return 1;
        }
        at += 12 + length;
    }
    return 0;
}

/* Asks the name server once; what went wrong, or NULL. */
static const char *resolve(int64_t limit, struct in_addr *address) {
    unsigned char packet[sizeof question], answer[1500];
    const char *wrong = NULL;
    int server = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (server < 0) return "no socket";
    memcpy(packet, question, question_size);
    packet[0] = (unsigned char)(server >> 8), packet[1] = (unsigned char)server;
    struct pollfd waiting = {.fd = server, .events = POLLIN};
    ssize_t got;
    if (connect(server, (struct sockaddr *)&name_server, sizeof name_server) ||
        send(server, packet, question_size, 0) != (ssize_t)question_size) wrong = "can't ask for the name";
    else if (poll(&waiting, 1, (int)(limit - now_ms())) <= 0) wrong = "no answer for the name in time";
    else if ((got = recv(server, answer, sizeof answer, 0)) < 12) wrong = "the name server is gone";
    else if (answer[0] != packet[0] || answer[1] != packet[1]) wrong = "an answer to another question";
    else if (!read_answer(answer, (size_t)got, address)) wrong = "the name has no address";
    close(server);
    return wrong;
}

/* Opens a connection; what went wrong, or NULL. */
static const char *open_one(int64_t limit, int *connection) {
    struct sockaddr_in address = target;
    const char *wrong = question_size ? resolve(limit, &address.sin_addr) : NULL;
    if (wrong) return wrong;
    *connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*connection < 0) return "no socket";
    atomic_fetch_add(&opened, 1);
    if (connect(*connection, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) return strerror(errno);
    struct pollfd waiting = {.fd = *connection, .events = POLLOUT};
    int64_t left = limit - now_ms();
    if (left <= 0 || poll(&waiting, 1, (int)left) == 0) return "no connection in time";
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(*connection, SOL_SOCKET, SO_ERROR, &error, &size);
    return error ? strerror(error) : NULL;
}

/* One request, on this connection or on a new one where it is -1, which it is after the last answer; what went wrong,
 * or NULL. */
static const char *ask(int *connection, int keep) {
    static const char *const requests[] = {"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n",
                                           "GET / HTTP/1.1\r\nHost: web\r\nConnection: keep-alive\r\n\r\n"};
    const char *request = requests[keep], *wrong = NULL, *head;
    char answer[512] = "";
    size_t have = 0, whole = 0;
    int64_t began = now_ms(), limit = began + patience;
    if (*connection < 0) wrong = open_one(limit, connection);
    if (!wrong && write(*connection, request, strlen(request)) != (ssize_t)strlen(request)) wrong = "can't send";
    while (!wrong) {
        int64_t left = limit - now_ms();
        struct pollfd waiting = {.fd = *connection, .events = POLLIN};
        if (left <= 0 || poll(&waiting, 1, (int)left) == 0) { wrong = "no answer in time"; break; }
        ssize_t got = read(*connection, answer + have, sizeof answer - 1 - have);
        if (got < 0 && errno == EAGAIN) continue;
        if (got < 0) { wrong = strerror(errno); break; }
        have += (size_t)got;
        answer[have] = 0;
        if (got == 0) {
            if (keep) wrong = have ? "an answer was cut short" : "the connection was closed before the answer";
            break;
        }
        head = strstr(answer, "\r\n\r\n");
        if (!whole && head) {
            const char *length = strstr(answer, "Content-Length: ");
            whole = length ? (size_t)(head - answer) + 4 + strtoul(length + 16, NULL, 10) : 0;
        }
        if ((keep && whole && have >= whole) || have == sizeof answer - 1) break;
    }
    if (now_ms() - began > 1000) atomic_fetch_add(&late, 1);
    int last = wrong || !keep || !strstr(answer, "Connection: keep-alive");
    if (last && *connection >= 0) { close(*connection); *connection = -1; }
    if (!wrong && (strncmp(answer, "HTTP/1.1 200", 12) || !strstr(answer, "host="))) wrong = "not the page";
    return wrong;
}

static void count(const char *wrong, int64_t began) {
    int64_t ended = clock_ms();
    /* One write for each line, as many threads print. */
    if (traced) printf("%lld %lld %s\n", (long long)began, (long long)ended, wrong ? wrong : "ok");
    if (wrong) {
        if (atomic_fetch_add(&failed, 1) < 10)
            fprintf(stderr, "at %lld.%03lld: %s\n", (long long)ended / 1000, (long long)ended % 1000, wrong);
    } else {
        atomic_fetch_add(&ok, 1);
    }
}

static void *ask_once(void *argument) {
    (void)argument;
    int64_t began = clock_ms(), limit = now_ms() + retried;
    const char *wrong;
    for (;;) {
        int connection = -1;
        wrong = ask(&connection, 0);
        if (!wrong || now_ms() >= limit) break;
        usleep(10000);
    }
    count(wrong, began);
    atomic_fetch_sub(&in_flight, 1);
    return NULL;
}

/* A connection that is kept: asked when its turn comes, and opened anew when it has ended. */
struct kept { sem_t turns; atomic_int over; };

static void *keep_asking(void *argument) {
    struct kept *kept = argument;
    int connection = -1;
    for (;;) {
        if (sem_wait(&kept->turns)) continue;
        if (atomic_load(&kept->over)) break;
        int64_t began = clock_ms();
        count(ask(&connection, 1), began);
        atomic_fetch_sub(&in_flight, 1);
    }
    if (connection >= 0) close(connection);
    return NULL;
}

/* Whether the file says that this many are enough. */
static int enough(const char *path, long sent) {
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    long least = 0;
    int read = fscanf(file, "%ld", &least);
    fclose(file);
    return read == 1 && sent >= least;
}

static int load(int count, char **arguments) {
    if (count < 4) {
        fprintf(stderr, "web load ADDRESS PORT RATE SECONDS [STOP [KEPT]]\n");
        return 2;
    }
    patience = number(getenv("PATIENCE_MS"), 5000);
    retried = number(getenv("RETRY_MS"), 0);
    traced = getenv("TRACE") != NULL;
    char *server = strchr(arguments[0], '@');
    if (server) {
        *server = 0;
        name_server.sin_family = AF_INET;
        name_server.sin_port = htons(53);
        if (inet_pton(AF_INET, server + 1, &name_server.sin_addr) != 1 || !make_question(arguments[0])) return 2;
    }
    long port = number(arguments[1], 0), rate = number(arguments[2], 0), seconds = number(arguments[3], 0), sent = 0;
    target.sin_family = AF_INET;
    target.sin_port = htons((uint16_t)port);
    if ((!server && inet_pton(AF_INET, arguments[0], &target.sin_addr) != 1) || port < 1 || rate < 1 || seconds < 1) return 2;
    long many = count > 5 ? number(arguments[5], 0) : 0;
    struct kept *kept = many > 0 ? calloc((size_t)many, sizeof *kept) : NULL;
    for (long one = 0; kept && one < many; one++)
        if (sem_init(&kept[one].turns, 0, 0) || spawn(keep_asking, &kept[one])) return 1;
    int64_t began = now_ms();
    while (!terminated && sent < rate * seconds) {
        int64_t due = began + sent * 1000 / rate, early = due - now_ms();
        if (early > 0) usleep((useconds_t)early * 1000);
        if (count > 4 && sent % 16 == 0 && enough(arguments[4], sent)) break;
        sent++;
        atomic_fetch_add(&in_flight, 1);
        if (kept) {
            sem_post(&kept[sent % many].turns);
        } else if (spawn(ask_once, NULL)) {
            atomic_fetch_add(&failed, 1);
            atomic_fetch_sub(&in_flight, 1);
        }
    }
    while (atomic_load(&in_flight)) usleep(1000);
    for (long one = 0; kept && one < many; one++) {
        atomic_store(&kept[one].over, 1);
        sem_post(&kept[one].turns);
    }
    printf("{\"rate\": %ld, \"seconds\": %.1f, \"sent\": %ld, \"ok\": %ld, \"failed\": %ld, \"late\": %ld, \"opened\": %ld}\n", rate,
        (double)(now_ms() - began) / 1000, sent, atomic_load(&ok), atomic_load(&failed), atomic_load(&late),
        atomic_load(&opened));
    return 0;
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 1 && !strcmp(arguments[1], "load")) return load(count - 2, arguments + 2);
    return serve();
}
