/* What AMD's HIP runtime sees, in many environments: one line of answer for each line of standard input.
 *
 * A line holds assignments such as HIP_VISIBLE_DEVICES=1,0, separated by tabs (\x1f in place of a tab in a value). Each
 * line gets a process of its own, forked after the libraries are loaded and before they are started, so that one
 * environment costs milliseconds. An answer is JSON: {"error": 100, "gpus": []}, or {"signal": 6} where it is killed.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COMPUTE_UNITS = 63 }; /* of hipDeviceAttribute_t */
#define ALLOCATED_BYTES (1 << 28)

static void *library;
#define CALL(name, ...) (((int (*)())dlsym(library, #name))(__VA_ARGS__))

/* Properties are a structure of 1.5 KB; the name is at its start, and the architecture is the text that starts with gfx. */
static const char *architecture(const char *properties, size_t size) {
  for (size_t i = 256; i + 4 < size; i++)
    if (!memcmp(properties + i, "gfx", 3)) return properties + i;
  return "";
}

static void describe(int device, int count) {
  char address[64] = "", uuid[17] = "", properties[8192] = "";
  size_t total = 0, free_bytes = 0, free_after = 0;
  int units = 0, too_much;
  void *memory = NULL;
  CALL(hipDeviceGetPCIBusId, address, (int)sizeof address, device);
  CALL(hipDeviceGetUuid, uuid, device);
  CALL(hipDeviceGetAttribute, &units, COMPUTE_UNITS, device);
  CALL(hipGetDevicePropertiesR0600, properties, device);
  CALL(hipSetDevice, device);
  CALL(hipMemGetInfo, &free_bytes, &total);
  too_much = CALL(hipMalloc, &memory, 2 * total);
  CALL(hipMalloc, &memory, (size_t)ALLOCATED_BYTES);
  CALL(hipMemGetInfo, &free_after, &total);
  printf("{\"address\": \"%s\", \"uuid\": \"%s\", \"name\": \"%s\", \"gfx\": \"%s\", \"units\": %d, ", address, uuid,
         properties, architecture(properties, sizeof properties), units);
  printf("\"total\": %zu, \"free\": %zu, \"free_after\": %zu, \"too_much\": %d, ", total, free_bytes, free_after, too_much);
  printf("\"peers\": [");
  for (int peer = 0, is_first = 1; peer < count; peer++) {
    uint32_t kind = 0, hops = 0;
    if (peer == device || CALL(hipExtGetLinkTypeAndHopCount, device, peer, &kind, &hops)) continue;
    printf("%s[%d, %u, %u]", is_first ? "" : ", ", peer, kind, hops);
    is_first = 0;
  }
  printf("]}");
}

static void answer(char *line, int is_whole) {
  for (char *part = strtok(line, "\t"); part; part = strtok(NULL, "\t")) {
    for (char *at = part; *at; at++)
      if (*at == '\x1f') *at = '\t';
    putenv(part);
  }
  int count = 0, error = CALL(hipGetDeviceCount, &count);
  printf("{\"error\": %d, \"gpus\": [", error);
  for (int device = 0; device < count; device++) {
    char address[64] = "";
    if (device) printf(", ");
    if (is_whole) {
      describe(device, count);
      continue;
    }
    CALL(hipDeviceGetPCIBusId, address, (int)sizeof address, device);
    printf("{\"address\": \"%s\"}", address);
  }
  printf("]}\n");
}

int main(int count, char **arguments) {
  char line[8192];
  int is_whole = count > 2 && !strcmp(arguments[2], "whole"), status;
  library = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
  if (!library) return fprintf(stderr, "%s\n", count > 1 ? dlerror() : "usage: hip_probe LIBRARY [whole]"), 2;
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
      alarm(60);
      answer(line, is_whole);
      fflush(stdout);
      _exit(0); /* not exit: ROCm's end waits for queues, which never run here */
    }
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) printf("{\"signal\": %d}\n", WTERMSIG(status));
  }
  return 0;
}
