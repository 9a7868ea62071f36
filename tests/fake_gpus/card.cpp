// CUDA's runtime and driver as far as PyTorch's own code asks them, with one card of compute capability 8.0 whose memory
// is the host's: copies copy, streams are always done, kernels do nothing (tests/fake_gpus/card.py computes in their place).
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

static std::set<void *> pinned;
static std::mutex guard;

static int allocated(void **memory, size_t bytes) {
    *memory = aligned_alloc(512, (bytes + 511) / 512 * 512);
    return *memory ? 0 : 2;
}

extern "C" {
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int) { return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaGetLastError() { return 0; }
int cudaPeekAtLastError() { return 0; }
int cudaDeviceSynchronize() { return 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -1; return 0; }
int cudaDeviceCanAccessPeer(int *can, int, int) { *can = 0; return 0; }
int cudaDeviceGetAttribute(int *held, int, int) { *held = 1; return 0; }
int cudaStreamCreateWithPriority(void **stream, unsigned, int) { *stream = malloc(8); return 0; }
int cudaStreamSynchronize(void *) { return 0; }
int cudaStreamQuery(void *) { return 0; }
int cudaStreamIsCapturing(void *, int *capturing) { *capturing = 0; return 0; }
int cudaStreamGetCaptureInfo(void *, int *capturing, ...) { *capturing = 0; return 0; }
int cudaStreamGetCaptureInfo_v2(void *, int *capturing, ...) { *capturing = 0; return 0; }
int cudaThreadExchangeStreamCaptureMode(int *) { return 0; }
int cudaStreamWaitEvent(void *, void *, unsigned) { return 0; }
int cudaEventCreateWithFlags(void **event, unsigned) { *event = malloc(8); return 0; }
int cudaEventRecord(void *, void *) { return 0; }
int cudaEventRecordWithFlags(void *, void *, unsigned) { return 0; }
int cudaEventQuery(void *) { return 0; }
int cudaEventSynchronize(void *) { return 0; }
int cudaEventElapsedTime(float *milliseconds, void *, void *) { *milliseconds = 1; return 0; }
int cudaEventDestroy(void *event) { free(event); return 0; }
int cudaMalloc(void **memory, size_t bytes) { return allocated(memory, bytes); }
int cudaFree(void *memory) { free(memory); return 0; }
int cudaHostAlloc(void **memory, size_t bytes, unsigned) {
    std::lock_guard<std::mutex> held(guard);
    int error = allocated(memory, bytes);
    pinned.insert(*memory);
    return error;
}
int cudaFreeHost(void *memory) {
    std::lock_guard<std::mutex> held(guard);
    pinned.erase(memory);
    free(memory);
    return 0;
}
int cudaMemGetInfo(size_t *free, size_t *total) { *free = *total = size_t(16) << 30; return 0; }
int cudaMemcpy(void *to, const void *from, size_t bytes, int) { memcpy(to, from, bytes); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, void *) { memcpy(to, from, bytes); return 0; }
int cudaMemsetAsync(void *to, int value, size_t bytes, void *) { memset(to, value, bytes); return 0; }
int cudaLaunchKernel(...) { return 0; }
int cudaPointerGetAttributes(int *attributes, void *memory) {
    std::lock_guard<std::mutex> held(guard);
    memset(attributes, 0, 24);
    attributes[0] = pinned.count(memory);  // 1: page-locked
    return 0;
}
int cudaGetDeviceProperties(char *properties, int) {
    memset(properties, 0, 368);
    strcpy(properties, "Stand-in");
    memcpy(properties + 288, "\0\0\0\0\4", 5);      // bytes of memory: 16 GiB
    *reinterpret_cast<int *>(properties + 308) = 32;    // threads of a warp
    *reinterpret_cast<int *>(properties + 320) = 1024;  // threads of a block
    *reinterpret_cast<int *>(properties + 360) = 8;     // compute capability
    return 0;
}
int cudaGetDeviceProperties_v2(char *properties, int device) { return cudaGetDeviceProperties(properties, device); }
int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
}
