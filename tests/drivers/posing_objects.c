/* Objects that the program made: how often it holds them, and what is known of them. */
#include "posing.h"
#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define BUCKETS 1024
static struct object *objects[BUCKETS];

struct object *find(void *handle) {
    struct object *o = objects[((uintptr_t)handle >> 4) % BUCKETS];
    while (o && o->handle != handle) o = o->next;
    return o;
}

/* Remember a new object; NULL (the driver failed) is passed through. */
struct object *made(void *handle, enum live kind, size_t bytes) {
    if (!handle) return NULL;
    pthread_mutex_lock(&lock);
    struct object *o = find(handle);
    if (!o) {
        struct object **bucket = &objects[((uintptr_t)handle >> 4) % BUCKETS];
        o = calloc(1, sizeof *o);
        if (!o) abort();
        o->next = *bucket;
        *bucket = o;
    }
    struct object *next = o->next;
    *o = (struct object){.next = next, .handle = handle, .kind = kind, .held = 1, .bytes = bytes};
    pthread_mutex_unlock(&lock);
    add_live(kind, 1);
    if (bytes) add_live(BYTES, (int64_t)bytes);
    return o;
}

void hold(void *handle, long n) {
    pthread_mutex_lock(&lock);
    struct object *o = find(handle);
    int gone = o && o->held && (o->held += n) == 0;
    pthread_mutex_unlock(&lock);
    if (!gone) return;
    add_live(o->kind, -1);
    if (o->bytes) add_live(BYTES, -(int64_t)o->bytes);
}
