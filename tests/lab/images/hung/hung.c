/* A file system that hangs: it answers the kernel's first question, and then nothing more (fuse(4)).
 *
 *   hung FOLDER          mounts itself there, writes "ready", and hangs until it is killed
 *   hung FOLDER reads    the same, but it has a folder "data" with a "file", and only reads of that file hang, each
 *                        with the line "read"
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ROOT = FUSE_ROOT_ID, DATA, NAMED_FILE };

static char request[1 << 17];
static int device;

static int reply(const struct fuse_in_header *asked, int error, const void *body, size_t size)
{
    struct fuse_out_header header = {
        .len = (uint32_t)(sizeof header + size), .error = error, .unique = asked->unique};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)body, size}};
    return writev(device, parts, size ? 2 : 1) == (ssize_t)header.len;
}

static struct fuse_attr attributes(uint64_t node)
{
    struct fuse_attr attr = {.ino = node, .nlink = 1, .blksize = 4096};
    attr.mode = node == NAMED_FILE ? S_IFREG | 0644 : S_IFDIR | 0755;
    attr.size = node == NAMED_FILE ? 4096 : 0;
    return attr;
}

/* Answers everything but reads. */
static int answer(const struct fuse_in_header *asked)
{
    const char *name = request + sizeof *asked;
    switch (asked->opcode) {
    case FUSE_READ:
        puts("read");
        fflush(stdout);
        return 1;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return 1;
    case FUSE_LOOKUP: {
        uint64_t node = asked->nodeid == ROOT && !strcmp(name, "data")   ? DATA
                        : asked->nodeid == DATA && !strcmp(name, "file") ? NAMED_FILE
                                                                         : 0;
        struct fuse_entry_out entry = {.nodeid = node, .attr = attributes(node)};
        return node ? reply(asked, 0, &entry, sizeof entry) : reply(asked, -ENOENT, NULL, 0);
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out found = {.attr = attributes(asked->nodeid)};
        return reply(asked, 0, &found, sizeof found);
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
        /* A read past the page cache cannot be killed. */
        struct fuse_open_out opened = {.open_flags = asked->opcode == FUSE_OPEN ? FOPEN_DIRECT_IO : 0};
        return reply(asked, 0, &opened, sizeof opened);
    }
    case FUSE_STATFS: {
        struct fuse_statfs_out free_space = {.st = {.blocks = 100, .bfree = 100, .bavail = 100, .bsize = 1 << 20, .frsize = 1 << 20}};
        return reply(asked, 0, &free_space, sizeof free_space);
    }
    case FUSE_READDIR:
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
        return reply(asked, 0, NULL, 0);
    default:
        return reply(asked, -ENOSYS, NULL, 0);
    }
}

int main(int count, char **arguments)
{
    int only_reads = count == 3 && !strcmp(arguments[2], "reads");
    if (count != 2 && !only_reads) {
        fprintf(stderr, "usage: hung FOLDER [reads]\n");
        return 2;
    }
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) {
        perror("/dev/fuse");
        return 1;
    }
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    if (mount("hung", arguments[1], "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
        perror(arguments[1]);
        return 1;
    }
    for (;;) {
        ssize_t length = read(device, request, sizeof request - 1);
        if (length < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
            continue;
        if (length < (ssize_t)sizeof(struct fuse_in_header))
            return 1;
        request[length] = 0;
        struct fuse_in_header asked;
        memcpy(&asked, request, sizeof asked);
        if (asked.opcode == FUSE_INIT) {
            struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
            if (!reply(&asked, 0, &init, sizeof init)) {
                perror("the first answer");
                return 1;
            }
            puts("ready");
            fflush(stdout);
        } else if (only_reads && !answer(&asked)) {
            perror("an answer");
            return 1;
        }
    }
}
