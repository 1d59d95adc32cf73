/* Which faults a program or a kernel has, and what happens when one fires. */
#include "posing.h"
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say(const char *format, ...) {
    if (!config.verbose) return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "posing driver: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t random_state;

void seed_chaos(uint64_t process) {
    random_state = config.chaos.seed * 0x9e3779b97f4a7c15u + process * 0xbf58476d1ce4e5b9u + 1;
}

/* Whether a fault at random happens at this stage; `draw` then tells which. */
int chaos_at(enum stage at, unsigned *draw) {
    struct chaos *c = &config.chaos;
    if (!(c->stages & 1u << at) || faults_here() >= (uint64_t)c->most) return 0;
    pthread_mutex_lock(&lock);
    random_state ^= random_state << 13;             /* xorshift64 */
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    uint64_t r = random_state;
    pthread_mutex_unlock(&lock);
    *draw = (unsigned)(r >> 8 & 0xffff);
    return (double)(r >> 32) / 4294967296.0 * 100.0 < c->percent;
}

cl_int fail(enum action action, const char *text, long n, cl_int error) {
    count_fault(action);
    say("%s", action_names[action]);
    if (action == ABORT) {
        fprintf(stderr, "%s\n", text && *text ? text
                : "LLVM ERROR: Cannot select: intrinsic %llvm.bifrost.2586");
        fflush(stderr);
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    if (action == SEGV) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (action == HANG) {
        for (unsigned left = (unsigned)n; left; left = sleep(left)) {}
        return CL_SUCCESS;
    }
    return error;
}

/* The rule's fault, unless it waits for a later match. */
int due(struct rule *rule) {
    long match = __atomic_add_fetch(&rule->matches, 1, __ATOMIC_SEQ_CST);
    return !rule->nth || (match >= rule->nth && match < rule->nth + rule->times);
}

/* A crash, hang or failure among these rules at a stage: its error code. */
cl_int fail_by_rules(uint64_t rules, enum stage at, cl_int error) {
    for (int i = 0; i < config.rule_count; i++) {
        struct rule *rule = &config.rules[i];
        if (!(rules >> i & 1) || rule->action > FAIL || rule->at != at || !due(rule)) continue;
        cl_int got = fail(rule->action, rule->text, rule->n, error);
        if (got) return got;
    }
    unsigned draw;
    if (!chaos_at(at, &draw)) return CL_SUCCESS;
    int crash = config.chaos.may_crash && (draw & 1);
    return fail(crash ? (draw & 2 ? ABORT : SEGV) : at == LAUNCH ? OOR : FAIL, NULL, 0, error);
}

static int matches(struct rule *rule, const char *text) {
    return !rule->has_pattern || regexec(&rule->pattern, text, 0, NULL, 0) == 0;
}

uint64_t rules_of(const char *text) {
    uint64_t found = 0;
    for (int i = 0; i < config.rule_count; i++)
        if (matches(&config.rules[i], text)) found |= (uint64_t)1 << i;
    return found;
}

/* The text that belongs to a kernel: from the end of the function before it (helpers stand
 * there) to the end of its own body. The whole source where the kernel is not found. */
static char *text_of_kernel(const char *source, const char *name) {
    size_t n = strlen(name);
    const char *at = source;
    while ((at = strstr(at, name)) && (at[n] != '(' || at == source || at[-1] != ' ')) at += n;
    if (!at) return strdup(source);
    const char *begin = at, *end = strchr(at, '{');
    while (begin > source && !(begin[0] == '}' && begin[-1] == '\n')) begin--;
    if (!end) return strdup(source);
    int depth = 0;
    do depth += (*end == '{') - (*end == '}'); while (*end++ && depth);
    return strndup(begin, (size_t)(end - begin));
}

uint64_t rules_of_kernel(struct object *program, const char *name) {
    pthread_mutex_lock(&lock);
    struct kernel_rules *k = program->kernels;
    while (k && strcmp(k->name, name)) k = k->next;
    if (!k) {
        char *text = text_of_kernel(program->source, name);
        k = malloc(sizeof *k + strlen(name) + 1);
        if (!k || !text) abort();
        *k = (struct kernel_rules){.next = program->kernels, .rules = rules_of(text)};
        strcpy(k->name, name);
        program->kernels = k;
        free(text);
    }
    pthread_mutex_unlock(&lock);
    return k->rules;
}

/* The first of some rules with an action, NULL where there is none. */
struct rule *rule_for(uint64_t rules, enum action action) {
    for (int i = 0; i < config.rule_count; i++)
        if ((rules >> i & 1) && config.rules[i].action == action) return &config.rules[i];
    return NULL;
}
