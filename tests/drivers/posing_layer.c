/* The layer's entry points: what the loader calls instead of the driver's.
 *
 *   gcc -shared -fPIC -o libposing.so posing_*.c
 *   OPENCL_LAYERS=libposing.so POSE_CONFIG=pose.conf POSE_STATS=stats python ...
 *
 * Everything on a platform that the configuration doesn't pose on goes straight to its driver.
 */
#define _GNU_SOURCE
#include "posing.h"
#include <CL/cl_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const cl_icd_dispatch *driver;   /* the next layer, or the driver itself */
static cl_icd_dispatch ours;

/* ---- objects are counted as long as the program holds them */

#define COUNTED(type, kind_name)                                                                  \
    static cl_int retain_##kind_name(type handle) {                                               \
        cl_int error = driver->clRetain##kind_name(handle);                                       \
        if (!error) hold(handle, 1);                                                              \
        return error;                                                                             \
    }                                                                                             \
    static cl_int release_##kind_name(type handle) {                                              \
        hold(handle, -1);                                                                         \
        return driver->clRelease##kind_name(handle);                                              \
    }
COUNTED(cl_context, Context)
COUNTED(cl_command_queue, CommandQueue)
COUNTED(cl_program, Program)
COUNTED(cl_mem, MemObject)

/* ---- where we pose */

static int ours_platform(cl_platform_id platform) {
    char name[256] = "";
    if (!*config.platform) return 1;
    driver->clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    return strstr(name, config.platform) != NULL;
}

static int ours_device(cl_device_id device) {
    cl_platform_id platform = NULL;
    driver->clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL);
    return ours_platform(platform);
}

/* Only contexts on platforms that we pose on are remembered, so an unknown one is another's. */
static int ours_context(cl_context context) { return find(context) != NULL; }

static cl_context context_of_queue(cl_command_queue queue) {
    cl_context context = NULL;
    driver->clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    return context;
}

static cl_device_id device_of_queue(cl_command_queue queue) {
    cl_device_id device = NULL;
    driver->clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    return device;
}

static cl_program program_of(cl_kernel kernel) {
    cl_program program = NULL;
    driver->clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof program, &program, NULL);
    return program;
}

static cl_int lost(cl_context context) {
    struct object *o = find(context);
    return o && o->lost ? config.lost_error : CL_SUCCESS;
}

static uint64_t rules_here(cl_kernel kernel) {
    char name[512] = "";
    struct object *program = find(program_of(kernel));
    driver->clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL);
    return program && program->source ? rules_of_kernel(program, name) : 0;
}

/* ---- what the device says of itself */

static cl_int answer(const void *value, size_t bytes, size_t room, void *out, size_t *needed) {
    if (needed) *needed = bytes;
    if (!out) return CL_SUCCESS;
    if (room < bytes) return CL_INVALID_VALUE;
    memcpy(out, value, bytes);
    return CL_SUCCESS;
}

static cl_int extensions(cl_device_id device, size_t room, void *out, size_t *needed) {
    char real[16384] = "", posed[20000] = "", *word, *rest;
    cl_int error = driver->clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof real, real, NULL);
    if (error) return error;
    for (word = strtok_r(real, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (extension_removed(word)) continue;
        strcat(posed, word);
        strcat(posed, " ");
    }
    strncat(posed, config.extensions_add, sizeof posed - strlen(posed) - 1);
    return answer(posed, strlen(posed) + 1, room, out, needed);
}

static cl_int get_device_info(cl_device_id device, cl_device_info what, size_t room, void *out,
                              size_t *needed) {
    cl_ulong number;
    size_t bytes;
    if (!ours_device(device)) return driver->clGetDeviceInfo(device, what, room, out, needed);
    const char *text = string_info(what, 0);
    if (text) return answer(text, strlen(text) + 1, room, out, needed);
    if (what == CL_DEVICE_EXTENSIONS) return extensions(device, room, out, needed);
    if (number_info(what, 0, &number, &bytes)) return answer(&number, bytes, room, out, needed);
    return driver->clGetDeviceInfo(device, what, room, out, needed);
}

static cl_int get_platform_info(cl_platform_id platform, cl_platform_info what, size_t room,
                                void *out, size_t *needed) {
    const char *text = ours_platform(platform) ? string_info(what, 1) : NULL;
    if (text) return answer(text, strlen(text) + 1, room, out, needed);
    return driver->clGetPlatformInfo(platform, what, room, out, needed);
}

static cl_int get_device_ids(cl_platform_id platform, cl_device_type type, cl_uint room,
                             cl_device_id *out, cl_uint *found) {
    cl_ulong posed;
    if (ours_platform(platform) && number_info(CL_DEVICE_TYPE, 0, &posed, NULL)
        && type != CL_DEVICE_TYPE_ALL && type != CL_DEVICE_TYPE_DEFAULT) {
        if (!(type & posed)) {
            if (found) *found = 0;
            return CL_DEVICE_NOT_FOUND;
        }
        type = CL_DEVICE_TYPE_ALL;
    }
    return driver->clGetDeviceIDs(platform, type, room, out, found);
}

/* ---- contexts and queues */

static cl_context create_context(const cl_context_properties *properties, cl_uint n,
                                 const cl_device_id *devices, void (CL_CALLBACK *notify)(
                                 const char *, const void *, size_t, void *), void *user,
                                 cl_int *error) {
    cl_context c = driver->clCreateContext(properties, n, devices, notify, user, error);
    if (n && ours_device(devices[0])) made(c, CONTEXTS, 0);
    return c;
}

static cl_command_queue remember_queue(cl_command_queue queue) {
    if (queue && ours_context(context_of_queue(queue))) made(queue, QUEUES, 0);
    return queue;
}

static cl_command_queue create_queue(cl_context context, cl_device_id device,
                                     cl_command_queue_properties properties, cl_int *error) {
    return remember_queue(driver->clCreateCommandQueue(context, device, properties, error));
}

/* A pose with cl_khr_priority_hints takes them, and keeps them from the real driver. */
static cl_command_queue create_queue_2(cl_context context, cl_device_id device,
                                       const cl_queue_properties *properties, cl_int *error) {
    cl_queue_properties left[32] = {0};
    int hints = strstr(config.extensions_add, "cl_khr_priority_hints") != NULL;
    for (int from = 0, to = 0; properties && properties[from] && to < 30; from += 2) {
        if (hints && properties[from] == 0x1096 /* CL_QUEUE_PRIORITY_KHR */) {
            count(HINTS);
            continue;
        }
        left[to++] = properties[from];
        left[to++] = properties[from + 1];
    }
    return remember_queue(
        driver->clCreateCommandQueueWithProperties(context, device, left, error));
}

/* ---- programs */

#define REFUSE(code) do { if (error) *error = (code); return NULL; } while (0)

static char *joined(cl_uint n, const char **texts, const size_t *lengths) {
    size_t bytes = 0;
    for (cl_uint i = 0; i < n; i++)
        bytes += lengths && lengths[i] ? lengths[i] : strlen(texts[i]);
    char *all = calloc(1, bytes + 1), *end = all;
    if (!all) abort();
    for (cl_uint i = 0; i < n; i++) {
        size_t length = lengths && lengths[i] ? lengths[i] : strlen(texts[i]);
        memcpy(end, texts[i], length);
        end += length;
    }
    return all;
}

/* Takes the source over. */
static cl_program remember_program(cl_program program, char *source) {
    struct object *o = made(program, PROGRAMS, 0);
    if (o) {
        o->source = source;
        o->rules = rules_of(source);
    }
    return program;
}

static cl_program create_with_source(cl_context context, cl_uint n, const char **texts,
                                     const size_t *lengths, cl_int *error) {
    if (!ours_context(context))
        return driver->clCreateProgramWithSource(context, n, texts, lengths, error);
    if (lost(context)) REFUSE(lost(context));
    char *source = joined(n, texts, lengths);
    struct rule *prelude = rule_for(rules_of(source), PRELUDE);
    const char *parts[] = {prelude ? prelude->text : "", prelude ? "\n#line 1\n" : "", source};
    if (prelude) count_fault(PRELUDE);
    return remember_program(
        driver->clCreateProgramWithSource(context, 3, parts, NULL, error), source);
}

static cl_int misbuild(cl_program program, cl_int error) {
    struct object *o = find(program);
    cl_context context = NULL;
    if (!o || !o->source) return CL_SUCCESS;
    count(BUILDS);
    driver->clGetProgramInfo(program, CL_PROGRAM_CONTEXT, sizeof context, &context, NULL);
    if (lost(context)) return lost(context);
    cl_int failed = fail_by_rules(o->rules, BUILD, error);
    o->refused = failed != CL_SUCCESS;
    return failed;
}

static cl_int build_program(cl_program program, cl_uint n, const cl_device_id *devices,
                            const char *options, void (CL_CALLBACK *notify)(cl_program, void *),
                            void *user) {
    cl_int error = misbuild(program, CL_BUILD_PROGRAM_FAILURE);
    if (error || !find(program))
        return error ? error : driver->clBuildProgram(program, n, devices, options, notify, user);
    char *known = real_options(options);
    error = driver->clBuildProgram(program, n, devices, known, notify, user);
    free(known);
    return error;
}

static cl_int compile_program(cl_program program, cl_uint n, const cl_device_id *devices,
                              const char *options, cl_uint headers, const cl_program *header,
                              const char **names, void (CL_CALLBACK *notify)(cl_program, void *),
                              void *user) {
    cl_int error = misbuild(program, CL_COMPILE_PROGRAM_FAILURE);
    return error ? error : driver->clCompileProgram(program, n, devices, options, headers, header,
                                                    names, notify, user);
}

static cl_int get_build_info(cl_program program, cl_device_id device, cl_program_build_info what,
                             size_t room, void *out, size_t *needed) {
    struct object *o = find(program);
    struct rule *rule = o ? rule_for(o->rules, FAIL) : NULL;
    cl_build_status failed = CL_BUILD_ERROR;
    if (o && o->refused && what == CL_PROGRAM_BUILD_STATUS)
        return answer(&failed, sizeof failed, room, out, needed);
    if (o && o->refused && what == CL_PROGRAM_BUILD_LOG) {
        const char *log = rule && rule->at == BUILD && *rule->text ? rule->text
                          : "error: Compiler frontend failed (error code 62)";
        return answer(log, strlen(log) + 1, room, out, needed);
    }
    return driver->clGetProgramBuildInfo(program, device, what, room, out, needed);
}

/* A posed binary: this header, the program's source (so that rules hold for it), the real one.
 * One with another driver digest comes from another driver version, and is refused. */
struct header {
    char magic[8];
    uint64_t driver;
    uint64_t source_bytes;
    uint64_t binary_bytes;
};
static const char MAGIC[8] = "POSEBIN";

static cl_int give_binaries(cl_program program, struct object *o, size_t room,
                            unsigned char **out) {
    size_t sizes[16] = {0}, source = strlen(o->source);
    driver->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof sizes, sizes, NULL);
    unsigned char *inner[16] = {NULL};
    size_t n = room / sizeof *out;
    for (size_t i = 0; i < n && i < 16; i++)
        inner[i] = out[i] && sizes[i] ? out[i] + sizeof(struct header) + source : NULL;
    cl_int error = driver->clGetProgramInfo(program, CL_PROGRAM_BINARIES, room, inner, NULL);
    for (size_t i = 0; !error && i < n && i < 16; i++) {
        if (!inner[i]) continue;
        struct header h = {.driver = config.driver_digest, .source_bytes = source,
                           .binary_bytes = sizes[i]};
        memcpy(h.magic, MAGIC, sizeof MAGIC);
        memcpy(out[i], &h, sizeof h);
        memcpy(out[i] + sizeof h, o->source, source);
    }
    return error;
}

static cl_int get_program_info(cl_program program, cl_program_info what, size_t room, void *out,
                               size_t *needed) {
    struct object *o = find(program);
    if (!o || !o->source || !out)
        return driver->clGetProgramInfo(program, what, room, out, needed);
    if (what == CL_PROGRAM_BINARIES && config.binaries) {
        if (needed) *needed = room;
        return give_binaries(program, o, room, out);
    }
    if (what == CL_PROGRAM_BINARIES) return CL_SUCCESS;
    cl_int error = driver->clGetProgramInfo(program, what, room, out, needed);
    if (error || what != CL_PROGRAM_BINARY_SIZES) return error;
    for (size_t i = 0, *sizes = out; i < room / sizeof *sizes; i++) {
        if (!config.binaries) sizes[i] = 0;
        else if (sizes[i]) sizes[i] += sizeof(struct header) + strlen(o->source);
    }
    return error;
}

static cl_program create_with_binary(cl_context context, cl_uint n, const cl_device_id *devices,
                                     const size_t *lengths, const unsigned char **binaries,
                                     cl_int *status, cl_int *error) {
    if (!ours_context(context) || n != 1)
        return driver->clCreateProgramWithBinary(context, n, devices, lengths, binaries, status,
                                                 error);
    struct header h = {.driver = 0};
    count(RELOADS);
    if (lost(context)) REFUSE(lost(context));
    if (lengths[0] >= sizeof h) memcpy(&h, binaries[0], sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC) || h.driver != config.driver_digest
        || lengths[0] != sizeof h + h.source_bytes + h.binary_bytes) {
        if (status) *status = CL_INVALID_BINARY;
        REFUSE(CL_INVALID_BINARY);
    }
    const unsigned char *inner = binaries[0] + sizeof h + h.source_bytes;
    char *source = strndup((const char *)binaries[0] + sizeof h, h.source_bytes);
    if (!source) abort();
    cl_int refused = fail_by_rules(rules_of(source), RELOAD, CL_INVALID_BINARY);
    if (refused) REFUSE(refused);
    return remember_program(driver->clCreateProgramWithBinary(
        context, 1, devices, &h.binary_bytes, &inner, status, error), source);
}

/* ---- launches */

/* Pieces of memory that the device has been lent, and that it must be lent to be used. */
static int acquired, external;

static cl_int get_kernel_group_info(cl_kernel kernel, cl_device_id device,
                                    cl_kernel_work_group_info what, size_t room, void *out,
                                    size_t *needed) {
    cl_int error = driver->clGetKernelWorkGroupInfo(kernel, device, what, room, out, needed);
    if (error || !out || what != CL_KERNEL_WORK_GROUP_SIZE || !find(program_of(kernel)))
        return error;
    cl_ulong limit;
    size_t *size = out;
    struct rule *rule = rule_for(rules_here(kernel), GROUP);
    if (number_info(CL_DEVICE_MAX_WORK_GROUP_SIZE, 0, &limit, NULL) && *size > limit)
        *size = (size_t)limit;
    if (rule && *size > (size_t)rule->n) *size = (size_t)rule->n;
    return error;
}

/* What keeps a launch from being accepted. */
static cl_int refuse_launch(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                            const size_t *local, uint64_t rules) {
    size_t size = 1, limit = 0;
    cl_ulong local_bytes = 0, local_limit;
    cl_device_id device = device_of_queue(queue);
    for (cl_uint i = 0; local && i < dimensions; i++) size *= local[i];
    get_kernel_group_info(kernel, device, CL_KERNEL_WORK_GROUP_SIZE, sizeof limit, &limit, NULL);
    if (size > limit) return fail(GROUP, NULL, 0, CL_INVALID_WORK_GROUP_SIZE);
    struct rule *hidden = rule_for(rules, HIDDEN_GROUP);
    if (hidden && size > (size_t)hidden->n)
        return fail(HIDDEN_GROUP, NULL, 0, CL_OUT_OF_RESOURCES);
    driver->clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local_bytes,
                                     &local_bytes, NULL);
    if (number_info(CL_DEVICE_LOCAL_MEM_SIZE, 0, &local_limit, NULL) && local_bytes > local_limit)
        return fail(OOR, NULL, 0, CL_OUT_OF_RESOURCES);
    struct rule *refused = rule_for(rules, OOR);
    if (refused && due(refused)) return fail(OOR, NULL, 0, CL_OUT_OF_RESOURCES);
    return fail_by_rules(rules, LAUNCH, CL_OUT_OF_RESOURCES);
}

/* Count the launch; at the configured number the queue's context is lost. */
static cl_int lose_by_launches(struct object *context) {
    static long launches, times;
    if (config.lost_after && times < config.lost_times && ++launches >= config.lost_after) {
        launches = 0;
        times++;
        context->lost = 1;
        return fail(LOST, NULL, 0, config.lost_error);
    }
    return CL_SUCCESS;
}

static cl_int enqueue_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                             const size_t *offset, const size_t *global, const size_t *local,
                             cl_uint waits, const cl_event *wait, cl_event *event) {
    struct object *q = find(queue), *context = q ? find(context_of_queue(queue)) : NULL;
    if (!q || !context)
        return driver->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local,
                                              waits, wait, event);
    count(LAUNCHES);
    if (external && !acquired) return CL_INVALID_OPERATION;
    cl_int error = context->lost ? config.lost_error : lose_by_launches(context);
    if (error) return error;
    uint64_t rules = rules_here(kernel);
    if ((error = refuse_launch(queue, kernel, dimensions, local, rules))) return error;
    struct rule *late = rule_for(rules, LATE), *drop = rule_for(rules, DROP);
    if (late && due(late)) {
        q->late = 1 + (int)late->at;
        q->told = 0;
        return driver->clEnqueueMarkerWithWaitList(queue, waits, wait, event);
    }
    if (drop && due(drop)) {
        count_fault(DROP);
        return driver->clEnqueueMarkerWithWaitList(queue, waits, wait, event);
    }
    return driver->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, waits,
                                          wait, event);
}

/* ---- waits and reads: where late faults and lost contexts show */

/* A launch that failed late is told once, by a finish or a wait; by reads twice, for pyopencl
 * repeats a read that is out of resources, and must not get stale memory then. */
static cl_int late_fault(cl_command_queue queue, enum stage at, int blocks) {
    struct object *q = find(queue);
    unsigned draw;
    if (!q) return CL_SUCCESS;
    cl_int error = lost(context_of_queue(queue));
    if (error) return error;
    int told = q->late == 1 + (int)at || (q->late == 1 + ANY_WAIT && blocks);
    if (told && (at != READ || ++q->told == 2)) q->late = 0;
    if (told || chaos_at(at, &draw)) return fail(LATE, NULL, 0, CL_OUT_OF_RESOURCES);
    return CL_SUCCESS;
}

static cl_int finish(cl_command_queue queue) {
    cl_int done = driver->clFinish(queue), error = late_fault(queue, FINISH, 1);
    return error ? error : done;
}

static cl_int flush(cl_command_queue queue) {
    cl_int done = driver->clFlush(queue);
    cl_int error = find(queue) ? lost(context_of_queue(queue)) : CL_SUCCESS;
    return error ? error : done;
}

static cl_int wait_for_events(cl_uint n, const cl_event *events) {
    cl_int done = driver->clWaitForEvents(n, events);
    for (cl_uint i = 0; i < n; i++) {
        cl_command_queue queue = NULL;
        driver->clGetEventInfo(events[i], CL_EVENT_COMMAND_QUEUE, sizeof queue, &queue, NULL);
        cl_int error = queue ? late_fault(queue, WAIT, 1) : CL_SUCCESS;
        if (error) return error;
    }
    return done;
}

static cl_int read_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                          size_t bytes, void *out, cl_uint waits, const cl_event *wait,
                          cl_event *event) {
    if (find(queue)) count(READS);
    cl_int error = late_fault(queue, READ, blocking != CL_FALSE);
    return error ? error : driver->clEnqueueReadBuffer(queue, buffer, blocking, offset, bytes, out,
                                                       waits, wait, event);
}

static cl_int write_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                           size_t bytes, const void *data, cl_uint waits, const cl_event *wait,
                           cl_event *event) {
    cl_int error = find(queue) ? lost(context_of_queue(queue)) : CL_SUCCESS;
    return error ? error : driver->clEnqueueWriteBuffer(queue, buffer, blocking, offset, bytes,
                                                        data, waits, wait, event);
}

static void *map_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, cl_map_flags flags,
                        size_t offset, size_t bytes, cl_uint waits, const cl_event *wait,
                        cl_event *event, cl_int *error) {
    cl_int failed = late_fault(queue, READ, blocking != CL_FALSE);
    if (failed) REFUSE(failed);
    return driver->clEnqueueMapBuffer(queue, buffer, blocking, flags, offset, bytes, waits, wait,
                                      event, error);
}

/* ---- memory */

static cl_int refuse_memory(cl_context context, size_t bytes) {
    cl_ulong largest;
    unsigned draw;
    count(ALLOCATIONS);
    if (lost(context)) return lost(context);
    if (number_info(CL_DEVICE_MAX_MEM_ALLOC_SIZE, 0, &largest, NULL) && bytes > largest)
        return fail(MEMORY, NULL, 0, CL_INVALID_BUFFER_SIZE);
    if (config.memory_limit && live_bytes() + bytes > config.memory_limit)
        return fail(MEMORY, NULL, 0, config.memory_error);
    if (chaos_at(ALLOCATE, &draw)) return fail(MEMORY, NULL, 0, config.memory_error);
    return CL_SUCCESS;
}

static cl_mem create_buffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host,
                            cl_int *error) {
    if (!ours_context(context)) return driver->clCreateBuffer(context, flags, bytes, host, error);
    cl_int refused = refuse_memory(context, bytes);
    if (refused) REFUSE(refused);
    cl_mem buffer = driver->clCreateBuffer(context, flags, bytes, host, error);
    made(buffer, BUFFERS, bytes);
    return buffer;
}

static cl_mem create_sub_buffer(cl_mem parent, cl_mem_flags flags, cl_buffer_create_type type,
                                const void *info, cl_int *error) {
    cl_mem part = driver->clCreateSubBuffer(parent, flags, type, info, error);
    if (find(parent)) made(part, BUFFERS, 0);
    return part;
}

static size_t image_bytes(const cl_image_format *format, const cl_image_desc *shape) {
    size_t channels = format->image_channel_order == CL_RGBA ? 4 : 1;
    size_t bytes = format->image_channel_data_type == CL_FLOAT ? 4
                   : format->image_channel_data_type == CL_HALF_FLOAT ? 2 : 1;
    size_t height = shape->image_height ? shape->image_height : 1;
    size_t depth = shape->image_depth ? shape->image_depth : 1;
    return shape->mem_object ? 0 : channels * bytes * shape->image_width * height * depth;
}

static cl_mem create_image(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                           const cl_image_desc *shape, void *host, cl_int *error) {
    cl_ulong limit;
    if (!ours_context(context))
        return driver->clCreateImage(context, flags, format, shape, host, error);
    cl_uint widest = shape->image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER
                     ? CL_DEVICE_IMAGE_MAX_BUFFER_SIZE : CL_DEVICE_IMAGE2D_MAX_WIDTH;
    if ((number_info(widest, 0, &limit, NULL) && shape->image_width > limit)
        || (number_info(CL_DEVICE_IMAGE2D_MAX_HEIGHT, 0, &limit, NULL)
            && shape->image_height > limit))
        REFUSE(CL_INVALID_IMAGE_SIZE);
    cl_int refused = refuse_memory(context, image_bytes(format, shape));
    if (refused) REFUSE(refused);
    cl_mem image = driver->clCreateImage(context, flags, format, shape, host, error);
    made(image, BUFFERS, image_bytes(format, shape));
    return image;
}

/* ---- memory of others: a dma-buf is any file that can be mapped */

struct mapping { void *at; size_t bytes; };

static void CL_CALLBACK unmap(cl_mem memory, void *data) {
    struct mapping *m = data;
    (void)memory;
    munmap(m->at, m->bytes);
    free(m);
}

static cl_mem import_file(cl_context context, cl_mem_flags flags, int file, size_t bytes,
                          cl_int *error) {
    struct mapping *m = malloc(sizeof *m);
    *m = (struct mapping){mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), bytes};
    if (m->at == MAP_FAILED) {
        free(m);
        REFUSE(CL_INVALID_VALUE);
    }
    cl_mem memory = create_buffer(context, flags | CL_MEM_USE_HOST_PTR, bytes, m->at, error);
    if (memory) driver->clSetMemObjectDestructorCallback(memory, unmap, m);
    return memory;
}

static cl_mem CL_API_CALL import_memory_arm(
    cl_context context, cl_mem_flags flags, const cl_import_properties_arm *properties,
    void *memory, size_t bytes, cl_int *error) {
    if (properties[0] != CL_IMPORT_TYPE_ARM || properties[1] != CL_IMPORT_TYPE_DMA_BUF_ARM)
        REFUSE(CL_INVALID_VALUE);
    return import_file(context, flags, *(int *)memory, bytes, error);
}

static cl_mem create_with_properties(cl_context context, const cl_mem_properties *properties,
                                     cl_mem_flags flags, size_t bytes, void *host,
                                     cl_int *error) {
    if (ours_context(context) && properties
        && properties[0] == CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR) {
        cl_mem memory = import_file(context, flags, (int)properties[1], bytes, error);
        external += memory != NULL;
        return memory;
    }
    return driver->clCreateBufferWithProperties(context, properties, flags, bytes, host, error);
}

/* It must be acquired before kernels are launched that use it: before any, in the tests. */
static cl_int CL_API_CALL acquire(cl_command_queue queue, cl_uint n, const cl_mem *memory,
                                  cl_uint waits, const cl_event *wait, cl_event *event) {
    (void)queue; (void)memory; (void)waits; (void)wait; (void)event;
    acquired += (int)n;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL give_back(cl_command_queue queue, cl_uint n, const cl_mem *memory,
                                    cl_uint waits, const cl_event *wait, cl_event *event) {
    (void)queue; (void)memory; (void)waits; (void)wait; (void)event;
    if (acquired < (int)n) return CL_INVALID_OPERATION;
    acquired -= (int)n;
    return CL_SUCCESS;
}

static void *extension_function(cl_platform_id platform, const char *name) {
    if (ours_platform(platform)) {
        if (!strcmp(name, "clImportMemoryARM")) return (void *)import_memory_arm;
        if (!strcmp(name, "clEnqueueAcquireExternalMemObjectsKHR")) return (void *)acquire;
        if (!strcmp(name, "clEnqueueReleaseExternalMemObjectsKHR")) return (void *)give_back;
    }
    return driver->clGetExtensionFunctionAddressForPlatform(platform, name);
}

/* ---- the layer */

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info what, size_t room, void *out,
                                               size_t *needed) {
    cl_layer_api_version version = CL_LAYER_API_VERSION_100;
    if (what == CL_LAYER_API_VERSION) return answer(&version, sizeof version, room, out, needed);
    if (what == CL_LAYER_NAME) return answer("posing", 7, room, out, needed);
    return CL_INVALID_VALUE;
}

static void take_over(void) {
    ours.clGetDeviceInfo = get_device_info;
    ours.clGetPlatformInfo = get_platform_info;
    ours.clGetDeviceIDs = get_device_ids;
    ours.clCreateContext = create_context;
    ours.clRetainContext = retain_Context;
    ours.clReleaseContext = release_Context;
    ours.clCreateCommandQueue = create_queue;
    ours.clCreateCommandQueueWithProperties = create_queue_2;
    ours.clRetainCommandQueue = retain_CommandQueue;
    ours.clReleaseCommandQueue = release_CommandQueue;
    ours.clCreateProgramWithSource = create_with_source;
    ours.clCreateProgramWithBinary = create_with_binary;
    ours.clBuildProgram = build_program;
    ours.clCompileProgram = compile_program;
    ours.clGetProgramInfo = get_program_info;
    ours.clGetProgramBuildInfo = get_build_info;
    ours.clRetainProgram = retain_Program;
    ours.clReleaseProgram = release_Program;
    ours.clGetKernelWorkGroupInfo = get_kernel_group_info;
    ours.clEnqueueNDRangeKernel = enqueue_kernel;
    ours.clFinish = finish;
    ours.clFlush = flush;
    ours.clWaitForEvents = wait_for_events;
    ours.clEnqueueReadBuffer = read_buffer;
    ours.clEnqueueWriteBuffer = write_buffer;
    ours.clEnqueueMapBuffer = map_buffer;
    ours.clCreateBuffer = create_buffer;
    ours.clCreateSubBuffer = create_sub_buffer;
    ours.clCreateImage = create_image;
    ours.clCreateBufferWithProperties = create_with_properties;
    ours.clGetExtensionFunctionAddressForPlatform = extension_function;
    ours.clRetainMemObject = retain_MemObject;
    ours.clReleaseMemObject = release_MemObject;
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint entries, const cl_icd_dispatch *next,
                                            cl_uint *ours_count, const cl_icd_dispatch **table) {
    size_t known = sizeof ours / sizeof(void *);
    driver = next;
    memcpy(&ours, next, (entries < known ? entries : known) * sizeof(void *));
    read_config(getenv("POSE_CONFIG"));
    seed_chaos(open_stats(getenv("POSE_STATS")));
    take_over();
    *table = &ours;
    *ours_count = (cl_uint)known;
    return CL_SUCCESS;
}
