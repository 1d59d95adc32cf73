/* The configuration of the posing layer: lines of `key = value`, `#` begins a comment line.
 *
 *   platform = Portable                     pose only on platforms whose real name contains this
 *   CL_DEVICE_NAME = Mali-G78 r0p1          answers of clGetDeviceInfo and clGetPlatformInfo
 *   extensions_add = cl_khr_fp16            extensions_remove = cl_khr_fp64 cl_intel_*
 *   options = -fregister-allocation=*       build options that the device knows:
 *                                           the real compiler doesn't get them
 *   binaries = none                         clGetProgramInfo returns no binary
 *   memory_limit = 1000000                  memory_error = -4
 *   lost_after = 40                         launches; lost_error = -36, lost_times = 1
 *   chaos = seed=7 percent=2 most=5 at=build,launch,read crash_where=VARIABLE
 *   rule = ACTION[:N] [at=STAGE] [nth=N] [times=N] [where=[!]VARIABLE] [/EXPRESSION/ [TEXT]]
 *
 * With nth, a rule fires at the n-th match of a process, and so many times. `where` limits it to
 * processes in whose environment the variable is set (or, with !, is not); where=@WORD to those
 * whose command line holds the word. In TEXT, \n is a line's end. A rule without an expression
 * holds for every source.
 */
#define _GNU_SOURCE
#include "posing.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct config config = {
    .platform = "", .extensions_add = "", .extensions_remove = "", .options = "", .binaries = 1,
    .memory_error = CL_MEM_OBJECT_ALLOCATION_FAILURE,
    .lost_error = CL_INVALID_COMMAND_QUEUE, .lost_times = 1,
};

const char *const action_names[ACTIONS] = {
    "abort", "segv", "hang", "fail", "oor", "late", "drop", "prelude", "group", "hidden_group",
    "lost", "memory"};
static const char *const stage_names[STAGES] = {
    "build", "reload", "launch", "finish", "wait", "read", "any", "allocate"};

/* Answers that can be configured: 's' a string, otherwise a number of so many bytes. */
#define INFO(name, kind) {#name, name, kind, 0, NULL, 0, 0}
#define PLATFORM_INFO(name) {#name, name, 's', 1, NULL, 0, 0}
static struct {
    const char *name;
    cl_uint id;
    char kind;
    int platform;
    char *text;
    cl_ulong number;
    int set;
} infos[] = {
    INFO(CL_DEVICE_NAME, 's'), INFO(CL_DEVICE_VENDOR, 's'), INFO(CL_DEVICE_VERSION, 's'),
    INFO(CL_DRIVER_VERSION, 's'), INFO(CL_DEVICE_OPENCL_C_VERSION, 's'),
    INFO(CL_DEVICE_PROFILE, 's'), INFO(CL_DEVICE_TYPE, 8), INFO(CL_DEVICE_VENDOR_ID, 4),
    INFO(CL_DEVICE_LOCAL_MEM_SIZE, 8), INFO(CL_DEVICE_LOCAL_MEM_TYPE, 4),
    INFO(CL_DEVICE_MAX_WORK_GROUP_SIZE, 8), INFO(CL_DEVICE_MAX_COMPUTE_UNITS, 4),
    INFO(CL_DEVICE_IMAGE_SUPPORT, 4), INFO(CL_DEVICE_IMAGE2D_MAX_WIDTH, 8),
    INFO(CL_DEVICE_IMAGE2D_MAX_HEIGHT, 8), INFO(CL_DEVICE_IMAGE3D_MAX_WIDTH, 8),
    INFO(CL_DEVICE_IMAGE_MAX_BUFFER_SIZE, 8), INFO(CL_DEVICE_IMAGE_PITCH_ALIGNMENT, 4),
    INFO(CL_DEVICE_HOST_UNIFIED_MEMORY, 4), INFO(CL_DEVICE_GLOBAL_MEM_SIZE, 8),
    INFO(CL_DEVICE_MAX_MEM_ALLOC_SIZE, 8), INFO(CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE, 8),
    INFO(CL_DEVICE_HALF_FP_CONFIG, 8), INFO(CL_DEVICE_DOUBLE_FP_CONFIG, 8),
    INFO(CL_DEVICE_NATIVE_VECTOR_WIDTH_HALF, 4), INFO(CL_DEVICE_PREFERRED_VECTOR_WIDTH_HALF, 4),
    INFO(CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, 4), INFO(CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, 4),
    INFO(CL_DEVICE_MEM_BASE_ADDR_ALIGN, 4),
    PLATFORM_INFO(CL_PLATFORM_NAME), PLATFORM_INFO(CL_PLATFORM_VENDOR),
    PLATFORM_INFO(CL_PLATFORM_VERSION)};
#define INFOS (sizeof infos / sizeof *infos)

static void die(const char *what, const char *where) {
    fprintf(stderr, "posing driver: %s: %s\n", what, where);
    _exit(99);
}

static char *copy(const char *text) {
    char *made = strdup(text);
    if (!made) die("no memory", text);
    return made;
}

/* The place of a name in a table; dies where it is not there. */
static int named(const char *name, const char *const *names, int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(name, names[i])) return i;
    die("unknown name", name);
    return -1;
}

/* Whether this process was started with the word among its arguments. */
static int started_with(const char *word) {
    static char line[8192];
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t n = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    return memmem(line, n, word, strlen(word)) != NULL;
}

/* Whether this process is as "VARIABLE", "!VARIABLE" or "@WORD" asks. */
static int here(const char *where) {
    if (*where == '@') return started_with(where + 1);
    const char *value = getenv(where + (*where == '!'));
    int set = value && *value;
    return *where == '!' ? !set : set;
}

/* The next word of *at, cut off in place; NULL at the end. */
static char *next_word(char **at) {
    while (isspace((unsigned char)**at)) ++*at;
    if (!**at) return NULL;
    char *word = *at;
    while (**at && !isspace((unsigned char)**at)) ++*at;
    if (**at) *(*at)++ = 0;
    return word;
}

/* The value where `word` is "key=value", else NULL. */
static char *value_of(char *word, const char *key) {
    size_t n = strlen(key);
    return !strncmp(word, key, n) && word[n] == '=' ? word + n + 1 : NULL;
}

/* Turn the two characters \n into a line's end, in place. */
static void unescape(char *text) {
    for (char *p = text; (p = strstr(p, "\\n")); p++) {
        *p = '\n';
        memmove(p + 1, p + 2, strlen(p + 2) + 1);
    }
}

static void read_pattern(struct rule *rule, char *text) {
    char *end = text;
    while (*end && !(*end == '/' && end[-1] != '\\')) end++;
    if (!*end) die("a regular expression has no end", text);
    *end++ = 0;
    if (regcomp(&rule->pattern, text, REG_EXTENDED | REG_NOSUB)) die("wrong expression", text);
    rule->has_pattern = 1;
    while (isspace((unsigned char)*end)) end++;
    rule->text = copy(end);
    unescape(rule->text);
}

static void read_rule(char *text) {
    if (config.rule_count == MAX_RULES) die("too many rules", text);
    struct rule rule = {.at = BUILD, .times = 1, .text = ""};
    char *colon, *word = next_word(&text), *value;
    if (!word) die("an empty rule", "rule =");
    if ((colon = strchr(word, ':'))) *colon = 0;
    rule.action = named(word, action_names, ACTIONS);
    rule.n = colon ? atol(colon + 1) : 0;
    if (rule.action == LATE) rule.at = ANY_WAIT;
    int holds = 1;
    for (;;) {
        while (isspace((unsigned char)*text)) text++;
        if (*text == '/') { read_pattern(&rule, text + 1); break; }
        if (!(word = next_word(&text))) break;
        if ((value = value_of(word, "at"))) rule.at = named(value, stage_names, STAGES);
        else if ((value = value_of(word, "nth"))) rule.nth = atol(value);
        else if ((value = value_of(word, "times"))) rule.times = atol(value);
        else if ((value = value_of(word, "where"))) holds &= here(value);
        else die("unknown part of a rule", word);
    }
    if (holds) config.rules[config.rule_count++] = rule;
}

static void read_chaos(char *text) {
    char *word, *value, *stage, *rest;
    struct chaos *c = &config.chaos;
    while ((word = next_word(&text))) {
        if ((value = value_of(word, "seed"))) c->seed = strtoull(value, NULL, 0);
        else if ((value = value_of(word, "percent"))) c->percent = atof(value);
        else if ((value = value_of(word, "most"))) c->most = atol(value);
        else if ((value = value_of(word, "crash_where"))) c->may_crash = here(value);
        else if ((value = value_of(word, "at")))
            for (stage = strtok_r(value, ",", &rest); stage; stage = strtok_r(NULL, ",", &rest))
                c->stages |= 1u << named(stage, stage_names, STAGES);
        else die("unknown part of chaos", word);
    }
}

static int read_info(const char *key, const char *value) {
    for (size_t i = 0; i < INFOS; i++) {
        if (strcmp(key, infos[i].name)) continue;
        infos[i].set = 1;
        if (infos[i].kind == 's') infos[i].text = copy(value);
        else infos[i].number = strtoull(value, NULL, 0);
        return 1;
    }
    return 0;
}

static void read_line(char *key, char *value) {
    if (!strcmp(key, "platform")) config.platform = copy(value);
    else if (!strcmp(key, "extensions_add")) config.extensions_add = copy(value);
    else if (!strcmp(key, "extensions_remove")) config.extensions_remove = copy(value);
    else if (!strcmp(key, "options")) config.options = copy(value);
    else if (!strcmp(key, "binaries")) config.binaries = strcmp(value, "none") != 0;
    else if (!strcmp(key, "memory_limit")) config.memory_limit = strtoull(value, NULL, 0);
    else if (!strcmp(key, "memory_error")) config.memory_error = atoi(value);
    else if (!strcmp(key, "lost_after")) config.lost_after = atol(value);
    else if (!strcmp(key, "lost_times")) config.lost_times = atol(value);
    else if (!strcmp(key, "lost_error")) config.lost_error = atoi(value);
    else if (!strcmp(key, "verbose")) config.verbose = atoi(value);
    else if (!strcmp(key, "chaos")) read_chaos(value);
    else if (!strcmp(key, "rule")) read_rule(value);
    else if (!read_info(key, value)) die("unknown key", key);
}

/* FNV-1a over the versions that the device claims. */
static uint64_t digest_versions(void) {
    uint64_t digest = 14695981039346656037u;
    for (size_t i = 0; i < INFOS; i++)
        for (const char *p = infos[i].text; p && *p; p++)
            digest = (digest ^ (unsigned char)*p) * 1099511628211u;
    return digest;
}

void read_config(const char *path) {
    static char line[16384];
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) die("cannot read the file that POSE_CONFIG names", path ? path : "(unset)");
    while (fgets(line, sizeof line, file)) {
        char *key = line, *value = strchr(line, '='), *end;
        while (isspace((unsigned char)*key)) key++;
        if (!*key || *key == '#') continue;
        if (!value) die("a line without '='", line);
        for (end = value; end > key && isspace((unsigned char)end[-1]); end--) {}
        *end = 0;
        for (value++; isspace((unsigned char)*value) && *value != '\n'; value++) {}
        for (end = value + strlen(value); end > value && isspace((unsigned char)end[-1]); end--) {}
        *end = 0;
        read_line(key, value);
    }
    fclose(file);
    config.driver_digest = digest_versions();
}

int number_info(cl_uint id, int platform, cl_ulong *value, size_t *bytes) {
    for (size_t i = 0; i < INFOS; i++) {
        if (infos[i].id != id || infos[i].platform != platform || !infos[i].set) continue;
        if (infos[i].kind == 's') return 0;
        *value = infos[i].number;
        if (bytes) *bytes = (size_t)infos[i].kind;
        return 1;
    }
    return 0;
}

const char *string_info(cl_uint id, int platform) {
    for (size_t i = 0; i < INFOS; i++)
        if (infos[i].id == id && infos[i].platform == platform && infos[i].set)
            return infos[i].text;
    return NULL;
}

/* Whether a word of the list is `name`, or begins it and ends with '*'. */
static int listed(const char *name, const char *list) {
    for (const char *word = list; *word;) {
        size_t n = strcspn(word, " ");
        if (n && word[n - 1] == '*' && !strncmp(name, word, n - 1)) return 1;
        if (n == strlen(name) && !strncmp(name, word, n)) return 1;
        word += n + strspn(word + n, " ");
    }
    return 0;
}

int extension_removed(const char *name) { return listed(name, config.extensions_remove); }

char *real_options(const char *options) {
    char *words = copy(options ? options : ""), *kept = calloc(1, strlen(words) + 2), *rest, *word;
    if (!kept) die("no memory", words);
    for (word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        if (!listed(word, config.options)) strcat(strcat(kept, word), " ");
    free(words);
    return kept;
}
