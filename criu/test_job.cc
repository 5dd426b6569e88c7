// A small process to be checkpointed by tests: no library's threads, no surprises. It shares one page with
// the test through a file: word 0 counts its rounds, word 1 tells it to exit with that status, word 2 is how
// many children to fork at the start. Its private memory carries a pattern that it checks all the time.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr uint64_t kMemoryBytes = 8 << 20;
constexpr int kBadMemory = 99;
constexpr uint64_t kOddBytes = 1 << 20;
constexpr int kInstallGuard = 102;  // MADV_GUARD_INSTALL, Linux 6.13

using Word = std::atomic<uint32_t>;

void Rest(Word* command) {
  timespec at_most{0, 2'000'000};
  ::syscall(SYS_futex, command, FUTEX_WAIT, 0, &at_most, nullptr, 0);
}

// Memory that can't simply be copied: a page in it is a guard, which is no page (thread stacks have some),
// and the other area may not be read.
bool HaveOddMemory() {
  constexpr int kPlain = MAP_PRIVATE | MAP_ANONYMOUS;
  // What lies beside it is of another kind, or the kernel would take both for one area.
  auto* closed = static_cast<char*>(::mmap(nullptr, 3 * kOddBytes, PROT_NONE, kPlain, -1, 0));
  if (closed == MAP_FAILED || ::mprotect(closed, 2 * kOddBytes, PROT_READ | PROT_WRITE) != 0) return false;
  char* guarded = closed + kOddBytes;
  for (uint64_t i = 0; i < kOddBytes; ++i) guarded[i] = closed[i] = static_cast<char>(i % 251 + 1);
  (void)::madvise(guarded + kOddBytes / 2, 4096, kInstallGuard);  // where the kernel knows it
  return ::mprotect(closed, kOddBytes, PROT_NONE) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int fd = ::open(argv[1], O_RDWR);
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || shared == MAP_FAILED) return 3;
  ::close(fd);
  Word* counter = static_cast<Word*>(shared);
  Word* command = counter + 1;
  for (uint32_t i = 0; i < counter[2]; ++i) {
    if (::fork() == 0) {
      while (*command == 0) Rest(command);
      ::_exit(0);
    }
  }
  auto* memory = static_cast<uint64_t*>(
      ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  constexpr uint64_t kWords = kMemoryBytes / sizeof(uint64_t);
  for (uint64_t i = 0; i < kWords; ++i) memory[i] = i * 0x9e3779b97f4a7c15u + 1;
  if (!HaveOddMemory()) return 4;
  for (;;) {
    for (uint64_t i = 0; i < kWords; i += 512) {
      if (memory[i] != i * 0x9e3779b97f4a7c15u + 1) return kBadMemory;
    }
    ++*counter;
    ::syscall(SYS_futex, counter, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
    if (*command != 0) break;
    Rest(command);
  }
  while (::wait(nullptr) > 0) {
  }
  return static_cast<int>(*command);
}
