/* The wall clock of a process, set ahead by CLOCK_AHEAD_S seconds: `tools/with-clock` loads this into
 * all that it starts.
 *
 * libfaketime exports functions with the names of libc's. ClickHouse does not call these: it asks the
 * vDSO, the code that the kernel maps into each process, and chDB binds to libc before anything that is
 * preloaded. So here the functions of the vDSO begin with a jump to ours, which serve libc, ClickHouse
 * and the JVM alike.
 *
 * The kernel's own clock stays as it is. So libc's waits until a moment of the wall clock begin with a
 * jump, too, and give the real moment to the kernel. Monotonic clocks and the times of files are real.
 * Programs without libc (Go) do not load this. */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t ahead_s;

static int is_wall(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

/* Must not touch errno: the vDSO's functions return -errno. */
static long kernel_clock(clockid_t clock, struct timespec *at) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_clock_gettime), "D"((long)clock), "S"(at)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long number __asm__("x8") = SYS_clock_gettime;
    register long first __asm__("x0") = clock;
    register struct timespec *second __asm__("x1") = at;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory");
    result = first;
#else
#error "with_clock.c knows x86-64 and AArch64"
#endif
    return result;
}

static int our_clock_gettime(clockid_t clock, struct timespec *at) {
    long result = kernel_clock(clock, at);
    if (result == 0 && is_wall(clock)) at->tv_sec += ahead_s;
    return (int)result;
}

static int our_gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    our_clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

static time_t our_time(time_t *at) {
    struct timespec now;
    our_clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* A moment of the wall clock is decades after 1970; monotonic clocks begin when the machine starts. */
static clockid_t clock_of(const struct timespec *until) {
    return until->tv_sec > 1000000000 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
}

static struct timespec real_moment(const struct timespec *until) {
    int is_ours = clock_of(until) == CLOCK_REALTIME;
    return (struct timespec){until->tv_sec - (is_ours ? ahead_s : 0), until->tv_nsec};
}

static int our_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec moment = real_moment(until);
    return pthread_cond_clockwait(cond, mutex, clock_of(until), &moment);
}

static int our_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec moment = real_moment(until);
    return pthread_mutex_clocklock(mutex, clock_of(until), &moment);
}

static int our_sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    struct timespec moment = real_moment(until);
    return sem_clockwait(semaphore, clock_of(until), &moment);
}

static const struct {
    const char *name;
    void *ours;
} IN_VDSO[] = {
    {"__vdso_clock_gettime", our_clock_gettime}, {"__kernel_clock_gettime", our_clock_gettime},
    {"__vdso_gettimeofday", our_gettimeofday},   {"__kernel_gettimeofday", our_gettimeofday},
    {"__vdso_time", our_time},
};

enum { JUMP_BYTES = 16 };

static void jump(unsigned char *from, void *to) {
#if defined(__x86_64__)
    memcpy(from, "\x48\xb8", 2); /* mov rax, to; jmp rax */
    memcpy(from + 2, &to, 8);
    memcpy(from + 10, "\xff\xe0", 2);
#else
    memcpy(from, "\x50\x00\x00\x58\x00\x02\x1f\xd6", 8); /* ldr x16, 8 bytes on; br x16 */
    memcpy(from + 8, &to, 8);
    __builtin___clear_cache((char *)from, (char *)from + 16);
#endif
}

static void fail(const char *what) {
    fprintf(stderr, "tools/with-clock: %s\n", what);
    _exit(125);
}

static void make_writable(void *code, size_t bytes) {
    if (mprotect(code, bytes, PROT_READ | PROT_WRITE | PROT_EXEC)) fail("the system lets no code be changed");
}

/* No other thread calls it yet: this runs before main(). */
static void replace_in_libc(void *function, void *ours) {
    uintptr_t page = sysconf(_SC_PAGESIZE), start = (uintptr_t)function & -page;
    uintptr_t end = ((uintptr_t)function + JUMP_BYTES + page - 1) & -page;
    make_writable((void *)start, end - start);
    jump(function, ours);
}

static void replace_in_vdso(unsigned char *vdso) {
    const ElfW(Ehdr) *head = (const void *)vdso;
    const ElfW(Phdr) *parts = (const void *)(vdso + head->e_phoff);
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    size_t bytes = 0;
    for (int i = 0; i < head->e_phnum; i++) {
        if (parts[i].p_type == PT_DYNAMIC) dynamic = (const void *)(vdso + parts[i].p_offset);
        if (parts[i].p_type == PT_LOAD) bytes = parts[i].p_offset + parts[i].p_memsz;
    }
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB) symbols = (const void *)(vdso + dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_STRTAB) names = (const char *)(vdso + dynamic->d_un.d_ptr);
    }
    if (!symbols || !names || (const char *)symbols >= names) fail("the vDSO has no symbols");
    make_writable(vdso, bytes); /* all of it: the kernel does not divide it */
    int replaced = 0;
    /* The table of names follows the table of symbols. */
    for (const ElfW(Sym) *symbol = symbols; (const char *)(symbol + 1) <= names; symbol++)
        for (size_t i = 0; i < sizeof IN_VDSO / sizeof *IN_VDSO; i++)
            if (symbol->st_value && !strcmp(names + symbol->st_name, IN_VDSO[i].name)) {
                jump(vdso + symbol->st_value, IN_VDSO[i].ours);
                replaced++;
            }
    if (replaced < 2) fail("the vDSO has no clock_gettime and gettimeofday");
}

__attribute__((constructor)) static void start(void) {
    const char *ahead = getenv("CLOCK_AHEAD_S");
    unsigned long vdso = getauxval(AT_SYSINFO_EHDR);
    if (!ahead) return;
    ahead_s = atoll(ahead);
    if (!vdso) fail("the kernel maps no vDSO");
    replace_in_vdso((unsigned char *)vdso);
    replace_in_libc(pthread_cond_timedwait, our_cond_timedwait);
    replace_in_libc(pthread_mutex_timedlock, our_mutex_timedlock);
    replace_in_libc(sem_timedwait, our_sem_timedwait);
}
