/* A CUDA driver that does nothing but remember: device memory is host memory, a launch copies its parameters.
   Built by the tests where there is a C compiler, found by the CUDA bindings through LD_LIBRARY_PATH. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef int R;
#define API __attribute__((visibility("default")))

/* What the tests read and set. */
API struct { u64 grid[3], block[3], shared, stream, cluster[3], launches, loads, encodes, allocated, waits, pdl, cooperative; } stub_state;
API unsigned char stub_params[32][128];
API int stub_sizes[32];
API int stub_count, stub_devices = 1, stub_capturing, stub_major = 9;
API char stub_fail_api[64];
API int stub_fail_code;
static __thread void *current;

static R fail(const char *api) { return strcmp(api, stub_fail_api) ? 0 : stub_fail_code; }
#define MAY_FAIL if (fail(__func__)) return fail(__func__)

API R cuInit(unsigned f) { MAY_FAIL; return 0; }
API R cuDriverGetVersion(int *v) { *v = 13000; return 0; }
API R cuGetErrorString(R e, const char **s) { *s = "as the test asked"; return 0; }
API R cuGetErrorName(R e, const char **s) { *s = "STUB"; return 0; }
API R cuDeviceGetCount(int *n) { *n = stub_devices; return 0; }
API R cuDeviceGet(int *d, int i) { *d = i; return 0; }
API R cuDeviceGetName(char *s, int n, int d) { strncpy(s, "Stub", n); return 0; }
API R cuDeviceGetAttribute(int *v, int a, int d) {
    *v = a == 75 ? stub_major : a == 76 ? 0 : a == 16 ? 132 : a == 97 ? 232448 : 1;
    return 0;
}
API R cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)(u64)(0x100 + d); return 0; }
API R cuCtxGetCurrent(void **c) { *c = current; return 0; }
API R cuCtxSetCurrent(void *c) { current = c; return 0; }
API R cuCtxGetDevice(int *d) { if (!current) return 201; *d = (int)((u64)current - 0x100); return 0; }
static int broken, milliseconds;
API R cuCtxSynchronize(void) { MAY_FAIL; return broken; }
API R cuStreamSynchronize(void *s) { MAY_FAIL; stub_state.waits++; return 0; }
API R cuStreamIsCapturing(void *s, int *v) { if (!current) return 201; *v = stub_capturing; return 0; }
API R cuModuleLoadDataEx(void **m, const void *image, unsigned n, int *opt, void **val) {
    if (!current) return 201;
    if (fail(__func__) && n) { strcpy(val[0], "the stub refuses this image"); return fail(__func__); }
    stub_state.loads++; *m = (void *)0x200; return 0;
}
API R cuModuleGetFunction(void **f, void *m, const char *name) { *f = (void *)0x300; return 0; }
API R cuFuncSetAttribute(void *f, int a, int v) { return 0; }
API R cuFuncGetAttribute(int *v, int a, void *f) { *v = a == 4 ? 40 : 0; return 0; }
API R cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int threads, u64 shared) { *n = 2048 / threads; return 0; }
struct config;
API R cuOccupancyMaxActiveClusters(int *n, void *f, const struct config *c) { *n = 60; return 0; }
static void remember(void **params) {
    for (int i = 0; i < stub_count; i++) memcpy(stub_params[i], params[i], stub_sizes[i]);
    stub_state.launches++;
}
/* STUB_KERNELS="64=hang 128=700 256=2.5": what a launch with so many threads does. It never returns, or breaks the context
   with that code, or writes that number where its second parameter points to, 1 if nothing is said. */
static void act(unsigned threads, void **params) {
    const char *plan = getenv("STUB_KERNELS"), *at;
    char key[16];
    if (!plan) return;
    milliseconds = (int)threads;
    snprintf(key, sizeof key, "%u=", threads);
    at = strstr(plan, key);
    if (at && !strncmp(at + strlen(key), "hang", 4)) for (;;) pause();
    double value = at ? atof(at + strlen(key)) : 1;
    if (value >= 700) broken = (int)value;
    else **(float **)params[1] += (float)value;
}
struct attr { int id; char pad[4]; union { unsigned dim[3]; char bytes[64]; } v; };
struct config { unsigned g[3], b[3], shared; void *stream; struct attr *attrs; unsigned n; };
/* A graph is its one kernel: what a launch of it is given. */
struct graph { struct config c; struct attr attrs[4]; unsigned char values[32][128]; };
static struct graph *captured;
API R cuLaunchKernelEx(const struct config *c, void *f, void **params, void **extra) {
    if (!current) return 201;
    if (captured && captured->c.stream == c->stream) {
        captured->c = *c;
        memcpy(captured->attrs, c->attrs, c->n * sizeof *c->attrs);
        for (int i = 0; i < stub_count; i++) memcpy(captured->values[i], params[i], stub_sizes[i]);
        return 0;
    }
    MAY_FAIL;
    stub_state.pdl = stub_state.cooperative = 0;
    for (int i = 0; i < 3; i++) { stub_state.grid[i] = c->g[i]; stub_state.block[i] = c->b[i]; }
    for (unsigned a = 0; a < c->n; a++) {
        if (c->attrs[a].id == 4)
            for (int i = 0; i < 3; i++) stub_state.cluster[i] = c->attrs[a].v.dim[i];
        if (c->attrs[a].id == 2) stub_state.cooperative = c->attrs[a].v.dim[0];
        if (c->attrs[a].id == 6) stub_state.pdl = c->attrs[a].v.dim[0];
    }
    stub_state.shared = c->shared; stub_state.stream = (u64)c->stream;
    remember(params);
    act(c->b[0], params);
    return 0;
}
API int stub_graphs;
API R cuStreamCreate(void **s, unsigned flags) { *s = (void *)0x500; return 0; }
API R cuStreamDestroy(void *s) { return 0; }
API R cuStreamBeginCapture(void *s, int mode) { captured = calloc(1, sizeof *captured); captured->c.stream = s; return 0; }
API R cuStreamEndCapture(void *s, struct graph **g) { *g = captured; captured = 0; return 0; }
API R cuGraphInstantiateWithFlags(struct graph **e, struct graph *g, u64 flags) {
    *e = malloc(sizeof **e); **e = *g; stub_graphs++; return 0;
}
API R cuGraphDestroy(struct graph *g) { free(g); return 0; }
API R cuGraphExecDestroy(struct graph *e) { stub_graphs--; free(e); return 0; }
API R cuGraphLaunch(struct graph *e, void *stream) {
    void *params[32];
    MAY_FAIL;
    for (int i = 0; i < 32; i++) params[i] = e->values[i];
    e->c.attrs = e->attrs; e->c.stream = stream;
    return cuLaunchKernelEx(&e->c, (void *)0x300, params, 0);
}
API R cuMemcpyDtoDAsync(void *d, const void *s, u64 n, void *stream) { memcpy(d, s, n); return 0; }
API R cuMemsetD8Async(void *p, unsigned char v, u64 n, void *stream) { return 0; }
API R cuModuleUnload(void *m) { return 0; }
API R cuEventCreate(void **e, unsigned flags) { *e = (void *)0x400; return 0; }
API R cuEventDestroy(void *e) { return 0; }
API R cuEventRecord(void *e, void *s) { return 0; }
API R cuEventElapsedTime(float *ms, void *a, void *b) { *ms = milliseconds / 64.0f; return 0; }
API R cuMemAlloc(void **p, u64 n) { MAY_FAIL; stub_state.allocated++; *p = aligned_alloc(256, (n + 255) / 256 * 256); return 0; }
API R cuMemFree(void *p) { stub_state.allocated--; free(p); return 0; }
API R cuMemcpyHtoD(void *d, const void *s, u64 n) { memcpy(d, s, n); return 0; }
API R cuMemcpyDtoH(void *d, const void *s, u64 n) { MAY_FAIL; memcpy(d, s, n); return 0; }
API R cuMemsetD8(void *p, unsigned char v, u64 n) { memset(p, v, n); return 0; }
API R cuTensorMapEncodeTiled(u64 *m, int type, unsigned rank, void *address, const u64 *dims, const u64 *strides,
                             const unsigned *box, const unsigned *elem, int interleave, int swizzle, int l2, int fill) {
    MAY_FAIL;
    if (!strides) return 1;
    memset(m, 0, 128);
    m[0] = (u64)address; m[1] = type; m[2] = rank; m[3] = swizzle; m[4] = fill;
    for (unsigned i = 0; i < rank; i++) { m[5 + i] = dims[i]; m[10 + i] = box[i]; }
    stub_state.encodes++;
    return 0;
}
API R cuGetProcAddress_v2(const char *name, void **fn, int version, u64 flags, int *status) {
    *fn = dlsym(RTLD_DEFAULT, name);
    Dl_info us, it;
    if (*fn && !(dladdr((void *)cuInit, &us) && dladdr(*fn, &it) && us.dli_fbase == it.dli_fbase)) *fn = 0;
    if (status) *status = *fn ? 0 : 1;
    return *fn ? 0 : 500;
}
API R cuGetProcAddress(const char *name, void **fn, int version, u64 flags) {
    return cuGetProcAddress_v2(name, fn, version, flags, 0);
}
