/* A file system that hangs: it answers the kernel's first question, and then nothing more (fuse(4)).
 *
 *   hung FOLDER    mounts itself there, writes "ready", and hangs until it is killed
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static char request[1 << 17];

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: hung FOLDER\n");
        return 2;
    }
    int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
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
        ssize_t length = read(device, request, sizeof request);
        if (length < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
            continue;
        if (length < (ssize_t)sizeof(struct fuse_in_header))
            return 1;
        struct fuse_in_header asked;
        memcpy(&asked, request, sizeof asked);
        if (asked.opcode != FUSE_INIT)
            continue;
        struct {
            struct fuse_out_header header;
            struct fuse_init_out init;
        } answer;
        memset(&answer, 0, sizeof answer);
        answer.header.len = sizeof answer;
        answer.header.unique = asked.unique;
        answer.init.major = FUSE_KERNEL_VERSION;
        answer.init.minor = 31;
        answer.init.max_write = 4096;
        if (write(device, &answer, sizeof answer) != (ssize_t)sizeof answer) {
            perror("the first answer");
            return 1;
        }
        puts("ready");
        fflush(stdout);
    }
}
