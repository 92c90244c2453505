/* A machine that loses its power and is suspended, under each process that preloads this library.

   MACHINE_FOLDER   Each change of a file in this folder is written into the journal. A sync is only noted:
                    tests/support/machine.py tells from the notes what a loss of power may take.
   MACHINE_JOURNAL  The file of the journal. All processes append to it, one record at a time, in the order
                    of their changes. Changes through mmap and stdio are not noticed.
   MACHINE_CLOCK    A file with two doubles: by how many seconds the clocks that run while a machine is suspended
                    are ahead, and by how many more somebody has set the time of day.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_FILES 65536
#define JOURNAL_FD 900 /* out of the way of programs that choose numbers */
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

struct head {
    uint8_t kind, zero[3];
    uint32_t length; /* of what follows */
    uint64_t inode, number;
};

static char folder[PATH_MAX];
static size_t folder_length;
static int journal = -1;
static volatile double *ahead_seconds;
static pthread_mutex_t in_process = PTHREAD_MUTEX_INITIALIZER;
/* By descriptor: the inode of a watched file, or 0; and the path of a watched folder. */
static uint64_t inodes[MOST_FILES];
static char *folders[MOST_FILES];

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("MACHINE_CLOCK");
    if (path != NULL) {
        int clock = syscall(SYS_open, path, O_RDONLY | O_CLOEXEC);
        void *mapped = mmap(NULL, 2 * sizeof(double), PROT_READ, MAP_SHARED, clock, 0);
        if (clock < 0 || mapped == MAP_FAILED) abort();
        ahead_seconds = mapped;
    }
    const char *watched = getenv("MACHINE_FOLDER"), *notes = getenv("MACHINE_JOURNAL");
    if (watched == NULL || notes == NULL) return;
    int opened = syscall(SYS_open, notes, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    journal = fcntl(opened, F_DUPFD_CLOEXEC, JOURNAL_FD);
    if (journal < 0) abort();
    syscall(SYS_close, opened);
    folder_length = (size_t)snprintf(folder, sizeof folder, "%s/", watched);
}

/* One change of all processes at a time. A lock of fcntl ends with its process. */
static void lock(short kind) {
    struct flock all = {.l_type = kind, .l_whence = SEEK_SET};
    if (kind != F_UNLCK) pthread_mutex_lock(&in_process);
    while (fcntl(journal, F_SETLKW, &all) != 0 && errno == EINTR) {
    }
    if (kind == F_UNLCK) pthread_mutex_unlock(&in_process);
}

static void note(char kind, uint64_t inode, uint64_t number, const struct iovec *parts, int count) {
    struct head head = {.kind = (uint8_t)kind, .inode = inode, .number = number};
    struct iovec all[64] = {{&head, sizeof head}};
    if (count > 63) abort();
    for (int part = 0; part < count; part++) {
        all[part + 1] = parts[part];
        head.length += (uint32_t)parts[part].iov_len;
    }
    if (syscall(SYS_writev, journal, all, count + 1) != (long)(sizeof head + head.length)) abort();
}

static void note_path(char kind, uint64_t inode, uint64_t number, const char *path) {
    struct iovec part = {(void *)path, strlen(path)};
    note(kind, inode, number, &part, 1);
}

/* The path within the folder; NULL if it is outside. */
static const char *within(const char *path, char *buffer) {
    if (journal < 0) return NULL;
    char here[PATH_MAX] = "";
    if (path[0] != '/' && getcwd(here, sizeof here) == NULL) return NULL;
    while (strncmp(path, "./", 2) == 0) path += 2;
    if (snprintf(buffer, PATH_MAX, "%s%s%s", here, here[0] ? "/" : "", path) >= PATH_MAX) return NULL;
    size_t length = strlen(buffer);
    if (length > 2 && strcmp(buffer + length - 2, "/.") == 0) buffer[length - 2] = 0;
    if (strncmp(buffer, folder, folder_length) == 0) return buffer + folder_length;
    length = strlen(buffer);
    return length + 1 == folder_length && strncmp(buffer, folder, length) == 0 ? "" : NULL;
}

static uint64_t watched(int file) { return journal >= 0 && file >= 0 && file < MOST_FILES ? inodes[file] : 0; }

static void note_opened(int file, int flags, const char *inside) {
    struct stat status;
    int has_no_name = (flags & O_TMPFILE) == O_TMPFILE;
    if (file < 0 || file >= MOST_FILES || has_no_name || fstat(file, &status) != 0) return;
    if (S_ISDIR(status.st_mode)) {
        folders[file] = strdup(inside);
    } else if (S_ISREG(status.st_mode)) {
        inodes[file] = status.st_ino;
        note_path('O', status.st_ino, (flags & O_TRUNC) != 0, inside);
    }
}

static int open_noted(const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *inside = within(path, buffer);
    if (inside == NULL) return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    lock(F_WRLCK);
    int file = syscall(SYS_openat, AT_FDCWD, path, flags, mode), kept = errno;
    note_opened(file, flags, inside);
    lock(F_UNLCK);
    errno = kept;
    return file;
}

#define MODE(flags)                                                          \
    va_list rest;                                                            \
    va_start(rest, flags);                                                   \
    mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);
#define OPEN(name)                               \
    int name(const char *path, int flags, ...) { \
        MODE(flags)                              \
        return open_noted(path, flags, mode);    \
    }
OPEN(open)
OPEN(open64)

/* Relative to a folder, as MariaDB opens files whose path must have no links. */
int openat64(int folder_file, const char *path, int flags, ...) {
    char link[64], opened[PATH_MAX], buffer[PATH_MAX];
    MODE(flags)
    if (journal < 0) return syscall(SYS_openat, folder_file, path, flags, mode);
    lock(F_WRLCK);
    int file = syscall(SYS_openat, folder_file, path, flags, mode), kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = file < 0 ? -1 : readlink(link, opened, sizeof opened - 1);
    const char *inside = NULL;
    if (length >= 0) {
        opened[length] = 0;
        inside = within(opened, buffer);
    }
    if (inside != NULL) note_opened(file, flags, inside);
    lock(F_UNLCK);
    errno = kept;
    return file;
}

int close(int file) {
    if (file == journal && journal >= 0) return 0;
    if (file >= 0 && file < MOST_FILES) {
        inodes[file] = 0;
        free(folders[file]);
        folders[file] = NULL;
    }
    return syscall(SYS_close, file);
}

static ssize_t written(int file, const struct iovec *parts, int count, off_t at, int positioned) {
    uint64_t inode = watched(file);
    if (inode != 0) {
        struct stat status;
        lock(F_WRLCK);
        off_t start = positioned ? at : lseek(file, 0, SEEK_CUR);
        if ((fcntl(file, F_GETFL) & O_APPEND) && fstat(file, &status) == 0) start = status.st_size;
        note('W', inode, (uint64_t)start, parts, count);
    }
    ssize_t length = positioned ? syscall(SYS_pwritev, file, parts, count, (unsigned long)at, 0UL)
                                : syscall(SYS_writev, file, parts, count);
    int kept = errno;
    if (inode != 0) lock(F_UNLCK);
    errno = kept;
    return length;
}

#define WHOLE {(void *)data, length}
ssize_t write(int file, const void *data, size_t length) {
    if (!watched(file)) return syscall(SYS_write, file, data, length);
    struct iovec whole = WHOLE;
    return written(file, &whole, 1, 0, 0);
}
ssize_t writev(int file, const struct iovec *parts, int count) { return written(file, parts, count, 0, 0); }
ssize_t pwrite(int file, const void *data, size_t length, off_t at) {
    struct iovec whole = WHOLE;
    return written(file, &whole, 1, at, 1);
}
ssize_t pwrite64(int file, const void *data, size_t length, off64_t at) {
    return pwrite(file, data, length, at);
}
ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) {
    return written(file, parts, count, at, 1);
}
ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t at) {
    return written(file, parts, count, at, 1);
}

static int truncated(int file, off_t size) {
    uint64_t inode = watched(file);
    if (inode != 0) {
        lock(F_WRLCK);
        note('T', inode, (uint64_t)size, NULL, 0);
    }
    int result = syscall(SYS_ftruncate, file, size), kept = errno;
    if (inode != 0) lock(F_UNLCK);
    errno = kept;
    return result;
}
int ftruncate(int file, off_t size) { return truncated(file, size); }
int ftruncate64(int file, off64_t size) { return truncated(file, size); }
int truncate(const char *path, off_t size) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return -1;
    int result = truncated(file, size), kept = errno;
    close(file);
    errno = kept;
    return result;
}
int posix_fallocate(int file, off_t at, off_t length) {
    struct stat status;
    if (!watched(file)) return REAL(posix_fallocate)(file, at, length);
    if (fstat(file, &status) != 0) return errno;
    return status.st_size >= at + length || truncated(file, at + length) == 0 ? 0 : errno;
}

/* Without it, InnoDB writes zeros. */
int fallocate64(int file, int mode, off64_t at, off64_t length) {
    if (!watched(file)) return REAL(fallocate64)(file, mode, at, length);
    errno = EOPNOTSUPP;
    return -1;
}

static int synced(int file) {
    uint64_t inode = watched(file);
    int is_folder = journal >= 0 && file >= 0 && file < MOST_FILES && folders[file] != NULL;
    if (inode == 0 && !is_folder) return syscall(SYS_fsync, file);
    lock(F_WRLCK);
    if (is_folder) {
        note_path('D', 0, 0, folders[file]);
    } else {
        note('S', inode, 0, NULL, 0);
    }
    lock(F_UNLCK);
    return 0;
}
int fsync(int file) { return synced(file); }
int fdatasync(int file) { return synced(file); }

static int renamed(char kind, const char *from, const char *to, int call) {
    char buffers[2][PATH_MAX];
    const char *old = from ? within(from, buffers[0]) : "", *new = within(to, buffers[1]);
    int is_noted = old != NULL && new != NULL;
    if (is_noted) lock(F_WRLCK);
    int result = from ? syscall(call, from, to) : syscall(call, to), kept = errno;
    if (is_noted) {
        struct iovec parts[] = {{(void *)old, strlen(old)}, {"", 1}, {(void *)new, strlen(new)}};
        if (result == 0) note(kind, 0, 0, parts, 3);
        lock(F_UNLCK);
    }
    errno = kept;
    return result;
}
int rename(const char *from, const char *to) { return renamed('R', from, to, SYS_rename); }
int link(const char *from, const char *to) { return renamed('L', from, to, SYS_link); }
int unlink(const char *path) { return renamed('U', NULL, path, SYS_unlink); }

static double ahead(clockid_t clock) {
    if (ahead_seconds == NULL) return 0.0;
    if (clock == CLOCK_BOOTTIME) return ahead_seconds[0];
    int is_of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    return is_of_day ? ahead_seconds[0] + ahead_seconds[1] : 0.0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    now->tv_sec += (time_t)ahead(clock);
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    now->tv_sec += (time_t)ahead(CLOCK_REALTIME);
    return result;
}
time_t time(time_t *now) {
    struct timespec read;
    clock_gettime(CLOCK_REALTIME, &read);
    if (now != NULL) *now = read.tv_sec;
    return read.tv_sec;
}
