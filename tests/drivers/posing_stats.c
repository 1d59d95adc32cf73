/* What happened, in a file that processes share: 64-bit numbers in the machine's byte order.
 *
 *   0                       magic, so that a wrong file is noticed
 *   1 .. TOTALS             what was done in all processes
 *   .. + ACTIONS            faults that fired, by action
 *   then SLOTS times        a process: its id, and what it holds (enum live)
 *
 * A process that died keeps its slot until another needs one; readers leave out dead processes.
 */
#include "posing.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#define MAGIC 0x504f53494e473031u
#define SLOTS 64

struct slot {
    int64_t pid;
    int64_t live[LIVES];
};
struct stats {
    uint64_t magic;
    uint64_t totals[TOTALS];
    uint64_t faults[ACTIONS];
    struct slot slots[SLOTS];
};

static struct stats own;                /* where no file is named */
static struct stats *stats = &own;
static struct slot *slot;
static uint64_t faults_of_process;

/* This process's slot: after a fork, another one. */
static struct slot *mine(void) {
    int64_t pid = getpid();
    if (slot && slot->pid == pid) return slot;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &stats->slots[i];
        int64_t owner = __atomic_load_n(&s->pid, __ATOMIC_SEQ_CST);
        if (owner && kill((pid_t)owner, 0) == 0) continue;
        if (!__atomic_compare_exchange_n(&s->pid, &owner, pid, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            continue;
        for (int n = 0; n < LIVES; n++) s->live[n] = 0;
        return slot = s;
    }
    return slot = &own.slots[0];
}

uint64_t open_stats(const char *path) {
    int file = path && *path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (file >= 0 && ftruncate(file, sizeof *stats) == 0) {
        void *map = mmap(NULL, sizeof *stats, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (map != MAP_FAILED) stats = map;
    }
    if (file >= 0) close(file);
    stats->magic = MAGIC;
    return __atomic_add_fetch(&stats->totals[PROCESSES], 1, __ATOMIC_SEQ_CST);
}

void count(enum total what) { __atomic_add_fetch(&stats->totals[what], 1, __ATOMIC_SEQ_CST); }

void add_live(enum live what, int64_t n) {
    __atomic_add_fetch(&mine()->live[what], n, __ATOMIC_SEQ_CST);
}

uint64_t live_bytes(void) {
    int64_t n = __atomic_load_n(&mine()->live[BYTES], __ATOMIC_SEQ_CST);
    return n > 0 ? (uint64_t)n : 0;
}

void count_fault(enum action action) {
    __atomic_add_fetch(&faults_of_process, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&stats->faults[action], 1, __ATOMIC_SEQ_CST);
}

uint64_t faults_here(void) { return __atomic_load_n(&faults_of_process, __ATOMIC_SEQ_CST); }
