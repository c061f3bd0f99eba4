/* Steps the wall clock of every process into which this is preloaded, by the seconds that stand in the file
 * STEPCLOCK (eight bytes, host order), from the moment that they stand there. The monotonic clock is left alone.
 * Waits until a moment of the wall clock are told the real one: on a real step the kernel would know both. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EPOCH_LIKE 1000000000 /* no machine has been up for so many seconds */

static volatile int64_t *stepped_by(void) {
    static volatile int64_t *found;
    static int64_t nothing;
    if (!found) {
        const char *path = getenv("STEPCLOCK");
        int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *map = descriptor < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, descriptor, 0);
        if (descriptor >= 0) close(descriptor);
        found = map == MAP_FAILED ? &nothing : map;
    }
    return found;
}

static void *next(const char *name) {
    /* Some have versions, and the oldest one is not what anybody wants. */
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return found ? found : dlsym(RTLD_NEXT, name);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = next("clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *stepped_by();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}

static const struct timespec *really(const struct timespec *until, struct timespec *room) {
    *room = *until;
    if (until->tv_sec > EPOCH_LIKE) room->tv_sec -= *stepped_by();
    return room;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec room;
    if (!real) real = next("pthread_cond_timedwait");
    return real(condition, mutex, really(until, &room));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec room;
    if (!real) real = next("sem_timedwait");
    return real(semaphore, really(until, &room));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    struct timespec room;
    if (!real) real = next("pthread_mutex_timedlock");
    return real(mutex, really(until, &room));
}
