// For programs that run on a machine's own libc, which may be older than the one that they were built with
// (2.34 is the oldest: RHEL 9; make-bundle.sh checks). Linked into such a program, this stands in for what
// libstdc++ and libgcc would otherwise want of a newer libc.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

// libstdc++'s std::random_device.
extern "C" unsigned arc4random() noexcept {
  unsigned number = 0;
  while (getrandom(&number, sizeof number, 0) != sizeof number) {
  }
  return number;
}

// libgcc's unwinder, as of GCC 12. Slower than that of libc, which has all of it at hand: exceptions are
// rare.
#ifdef DLFO_EH_SEGMENT_TYPE
extern "C" [[gnu::visibility("hidden")]] int _dl_find_object(void* address, dl_find_object* result) noexcept {
  struct Search {
    uintptr_t address;
    dl_find_object* result;
  } search{reinterpret_cast<uintptr_t>(address), result};
  const auto look = [](dl_phdr_info* object, size_t, void* argument) {
    const auto* wanted = static_cast<Search*>(argument);
    uintptr_t begin = UINTPTR_MAX, end = 0;
    void* unwind_table = nullptr;
    bool found = false;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = object->dlpi_phdr[i];
      const uintptr_t at = object->dlpi_addr + segment.p_vaddr;
      if (segment.p_type == DLFO_EH_SEGMENT_TYPE) unwind_table = reinterpret_cast<void*>(at);
      if (segment.p_type != PT_LOAD) continue;
      begin = std::min(begin, at);
      end = std::max(end, at + segment.p_memsz);
      found = found || (wanted->address >= at && wanted->address < at + segment.p_memsz);
    }
    if (!found) return 0;
    *wanted->result = {};
    wanted->result->dlfo_map_start = reinterpret_cast<void*>(begin);
    wanted->result->dlfo_map_end = reinterpret_cast<void*>(end);
    wanted->result->dlfo_eh_frame = unwind_table;
    return 1;
  };
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
#endif
