// bin/rekindle and bin/rekindled of the relocatable bundle, and lib/NAME of the programs that those start:
// starts libexec/rekindle/NAME of the same bundle with the bundle's own loader and libraries, so that neither
// a shell nor a matching libc is needed on the machine. Linked statically.
//
// In the started program /proc/self/exe is the loader; REKINDLE_BUNDLE says where the bundle is.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

// Before the arguments of the caller; the sentinel takes the place of argv[0].
#define FIXED_ARGUMENTS 6

// Cuts the last component off `path`. Returns it, or NULL when there is none.
static char* CutLast(char* path) {
  char* slash = strrchr(path, '/');
  if (!slash) return NULL;
  *slash = '\0';
  return slash + 1;
}

static char* Join(const char* folder, const char* name) {
  char* path = NULL;
  if (asprintf(&path, "%s/%s", folder, name) < 0) abort();
  return path;
}

int main(int argc, char** argv) {
  char self[PATH_MAX];
  // The second is for a chroot without /proc.
  if (!realpath("/proc/self/exe", self) && !realpath((const char*)getauxval(AT_EXECFN), self)) {
    fprintf(stderr, "rekindle: cannot find the bundle that this program is part of: %s\n", strerror(errno));
    return 1;
  }
  const char* name = CutLast(self);
  if (!name || !CutLast(self)) {
    fprintf(stderr, "rekindle: this program must stay in its folder of the bundle\n");
    return 1;
  }
  const char* root = self;
  setenv("REKINDLE_BUNDLE", root, 1);

  char** arguments = calloc((size_t)argc + FIXED_ARGUMENTS, sizeof(char*));
  if (!arguments) abort();
  int n = 0;
  arguments[n++] = Join(root, "lib/ld-linux-x86-64.so.2");
  arguments[n++] = "--library-path";
  arguments[n++] = Join(root, "lib");
  arguments[n++] = "--argv0";
  arguments[n++] = argc > 0 ? argv[0] : (char*)name;
  arguments[n++] = Join(Join(root, "libexec/rekindle"), name);
  for (int i = 1; i < argc; i++) arguments[n++] = argv[i];

  execv(arguments[0], arguments);
  fprintf(stderr, "rekindle: cannot start %s: %s. Unpack the whole bundle again.\n", arguments[0],
          strerror(errno));
  return 1;
}
