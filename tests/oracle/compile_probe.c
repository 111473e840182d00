/* Compile a program with AMD's runtime; nothing is run.
 *
 *   compile_probe hiprtc LIBRARY TARGET...    one line for each target, such as gfx1100
 *   compile_probe opencl LIBRARY OPTION...    one line for each device of the host
 *
 * The source is read from standard input. A line is "gfx1100 amdgcn-amd-amdhsa--gfx1100 5432": what was meant, what the
 * compiled code says it is for, and its bytes. A program that cannot be compiled ends this one with the compiler's log.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPENCL_GPU = 4, DEVICE_NAME = 0x102B, BINARY_SIZES = 0x1165, BINARIES = 0x1166, BUILD_LOG = 0x1183 };

static void *library;
#define CALL(name, ...) (((int (*)())dlsym(library, #name))(__VA_ARGS__))
#define MAKE(name, ...) (((void *(*)())dlsym(library, #name))(__VA_ARGS__))

static void end(const char *what, const char *log) {
  fprintf(stderr, "%s\n%s\n", what, log);
  _exit(1); /* not exit: ROCm's end waits for queues, which never run here */
}

/* The target that the compiled code itself names, in its metadata. */
static void report(const char *name, const char *code, size_t size) {
  static const char triple[] = "amdgcn-amd-amdhsa-";
  const char *found = memmem(code, size, triple, sizeof triple - 1);
  int length = found ? (int)strspn(found, "abcdefghijklmnopqrstuvwxyz0123456789-:+") : 0;
  printf("%s %.*s %zu\n", name, length, found ? found : "", size);
  fflush(stdout);
}

static void with_hiprtc(const char *source, int count, char **targets) {
  for (int i = 0; i < count; i++) {
    void *program = NULL;
    char option[64], log[65536] = "";
    const char *options[] = {option};
    size_t size = 0;
    snprintf(option, sizeof option, "--offload-arch=%s", targets[i]);
    CALL(hiprtcCreateProgram, &program, source, "kernel", 0, NULL, NULL);
    if (CALL(hiprtcCompileProgram, program, 1, options)) {
      CALL(hiprtcGetProgramLogSize, program, &size);
      if (size < sizeof log) CALL(hiprtcGetProgramLog, program, log);
      end(targets[i], log);
    }
    CALL(hiprtcGetCodeSize, program, &size);
    char *code = malloc(size);
    CALL(hiprtcGetCode, program, code);
    report(targets[i], code, size);
    free(code);
  }
}

static void with_opencl(const char *source, const char *options) {
  void *platform = NULL, *devices[64];
  uint32_t count = 0;
  int error = 0;
  if (CALL(clGetPlatformIDs, 1, &platform, NULL)) end("OpenCL", "it has no platform");
  if (CALL(clGetDeviceIDs, platform, (uint64_t)OPENCL_GPU, 64, devices, &count)) end("OpenCL", "it has no GPU");
  for (uint32_t i = 0; i < count; i++) {
    char name[64] = "", log[65536] = "";
    size_t size = 0;
    void *context = MAKE(clCreateContext, NULL, 1, &devices[i], NULL, NULL, &error);
    void *program = MAKE(clCreateProgramWithSource, context, 1, &source, NULL, &error);
    CALL(clGetDeviceInfo, devices[i], DEVICE_NAME, sizeof name, name, NULL);
    if (CALL(clBuildProgram, program, 1, &devices[i], options, NULL, NULL)) {
      CALL(clGetProgramBuildInfo, program, devices[i], BUILD_LOG, sizeof log, log, NULL);
      end(name, log);
    }
    CALL(clGetProgramInfo, program, BINARY_SIZES, sizeof size, &size, NULL);
    char *code = malloc(size);
    CALL(clGetProgramInfo, program, BINARIES, sizeof code, &code, NULL);
    report(name, code, size);
    free(code);
  }
}

int main(int count, char **arguments) {
  static char source[1 << 16];
  library = count > 2 ? dlopen(arguments[2], RTLD_NOW | RTLD_GLOBAL) : NULL;
  if (!library) end("usage: compile_probe hiprtc|opencl LIBRARY …", count > 2 ? dlerror() : "");
  if (!fread(source, 1, sizeof source - 1, stdin)) end("no source", "");
  alarm(300);
  if (!strcmp(arguments[1], "hiprtc")) with_hiprtc(source, count - 3, arguments + 3);
  else with_opencl(source, count > 3 ? arguments[3] : "");
  _exit(0);
}
