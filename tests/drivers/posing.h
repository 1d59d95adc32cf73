/* An OpenCL layer that makes a driver pose as another device, and fail as that device's would.
 *
 *   posing_config.c   reads the file that POSE_CONFIG names (its format is described there)
 *   posing_stats.c    counts, in the shared file that POSE_STATS names
 *   posing_objects.c  knows the contexts, queues, programs and buffers that the program holds
 *   posing_faults.c   fires what the rules say
 *   posing_layer.c    the OpenCL entry points that answer and fail
 */
#ifndef POSING_H
#define POSING_H

#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_layer.h>
#include <regex.h>
#include <stddef.h>
#include <stdint.h>

/* What a rule does. posing_config.c and posing.py name them in this order. */
enum action {
    ABORT,              /* print the text and abort(), as LLVM does on "Cannot select" */
    SEGV,
    HANG,               /* for N seconds */
    FAIL,               /* an error code, with the text as the build's log */
    OOR,                /* the launch is refused: CL_OUT_OF_RESOURCES */
    LATE,               /* the launch is accepted, never runs, and a later wait says so */
    DROP,               /* the launch is accepted and never runs */
    PRELUDE,            /* the text stands before the source: a macro that miscompiles a builtin */
    GROUP,              /* the kernel runs with at most N work-items a group, as the query says */
    HIDDEN_GROUP,       /* the same, and the query does not say so */
    LOST,               /* the context is gone */
    MEMORY,             /* no memory for a buffer */
    ACTIONS
};

/* Where a rule holds. For ABORT, SEGV, HANG and FAIL one of the first three, for LATE the rest. */
enum stage { BUILD, RELOAD, LAUNCH, FINISH, WAIT, READ, ANY_WAIT, ALLOCATE, STAGES };

struct rule {
    enum action action;
    enum stage at;
    long n;             /* of "hang:N" and its kind */
    long nth, times;    /* fires at the n-th match in a process, so many times; 0 = at each */
    long matches;       /* so far, in this process */
    int has_pattern;
    regex_t pattern;    /* on the source: of the program at BUILD, of the kernel at LAUNCH */
    char *text;
};

#define MAX_RULES 64    /* a program's rules are bits of one number */

struct chaos {          /* faults at random, at most `most` a process */
    uint64_t seed;
    double percent;     /* of the calls at these stages */
    long most;
    unsigned stages;    /* bits */
    int may_crash;      /* this process may die of it: the environment says so */
};

struct config {
    char *platform;             /* part of the real platform's name; "" = every platform */
    char *extensions_add, *extensions_remove;   /* the latter with "cl_intel_*" too */
    char *options;              /* that the posed compiler knows, the real one doesn't */
    int binaries;               /* 0: the driver returns none */
    uint64_t driver_digest;     /* of the versions it claims: other drivers' binaries are refused */
    uint64_t memory_limit;      /* bytes in all, 0 = the driver's own */
    cl_int memory_error;
    long lost_after;            /* launches in this process, 0 = never */
    long lost_times;
    cl_int lost_error;
    int verbose;
    struct chaos chaos;
    struct rule rules[MAX_RULES];
    int rule_count;
};

extern struct config config;
extern const char *const action_names[ACTIONS];

void read_config(const char *path);             /* exits the process for a wrong file */
int number_info(cl_uint id, int platform, cl_ulong *value, size_t *bytes);
const char *string_info(cl_uint id, int platform);
int extension_removed(const char *name);
char *real_options(const char *options);        /* for the real compiler; the caller frees it */

enum total { PROCESSES, BUILDS, RELOADS, LAUNCHES, READS, ALLOCATIONS, HINTS, TOTALS };
enum live { CONTEXTS, QUEUES, PROGRAMS, BUFFERS, BYTES, LIVES };

uint64_t open_stats(const char *path);          /* the process's number in the file, from 1 */
void count(enum total what);
void add_live(enum live what, int64_t n);
uint64_t live_bytes(void);                      /* of this process */
void count_fault(enum action action);
uint64_t faults_here(void);                     /* in this process */

struct kernel_rules {
    struct kernel_rules *next;
    uint64_t rules;
    char name[];
};

struct object {
    struct object *next;
    void *handle;
    enum live kind;
    long held;                      /* 0: released, its handle may come again */
    size_t bytes;                   /* of a buffer or an image */
    int lost;                       /* of a context */
    int late, told;                 /* of a queue: 1 + the stage that will fail, how often it did */
    uint64_t rules;                 /* of a program: bits */
    int refused;                    /* its build failed by a rule, or at random */
    char *source;
    struct kernel_rules *kernels;
};

struct object *find(void *handle);              /* NULL: not made through us */
struct object *made(void *handle, enum live kind, size_t bytes);
void hold(void *handle, long n);                /* n more holders; a negative n: fewer */

void seed_chaos(uint64_t process);
int chaos_at(enum stage at, unsigned *draw);
cl_int fail(enum action action, const char *text, long n, cl_int error);
cl_int fail_by_rules(uint64_t rules, enum stage at, cl_int error);
int due(struct rule *rule);
uint64_t rules_of(const char *text);
uint64_t rules_of_kernel(struct object *program, const char *name);
struct rule *rule_for(uint64_t rules, enum action action);

#endif
