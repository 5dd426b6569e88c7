// A job with much memory that it does everything with that a program may do, while that memory is still
// coming in: see arena.h. It fills its memory, parks, and once woken juggles from several threads and their
// children, then checks every page against what it must hold.
//
//   memory_juggler --directory DIR [--megabytes N] [--seed S] [--threads T] [--park file|hook] [--mode MODE]
//                  [--crowd N] [--hoard N]
//   memory_juggler --verify FILE --megabytes N --seed S
//
// Parked with `file` it waits for DIR/go, whose content is for how many milliseconds it shall juggle; with
// `hook` that is $MILLISECONDS. It writes to DIR/result.HOST ("ok …" or what was wrong), HOST being the name
// of the host that it wakes up on, so that copies can be told apart. MODE:
//   juggle   the above
//   spin     reads page after page, and writes a line with what it read of each to DIR/pages.HOST, for ever
//   sleep    touches nothing; ends once DIR/end is there, then checks all
//   forks    starts children that end at once, for so many milliseconds
//   hoard    starts so many children that stay until all are there, and then do as a crowd does
// With a crowd it parks with so many children, which check some of its memory when it is woken.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "hook/rekindle_hook.h"
#include "tests/clone_jobs/arena.h"
#include "tests/clone_jobs/shadow.h"
#include "tests/gpu_jobs/state_file.h"

namespace rekindle::clone_jobs {
namespace {

using gpu_jobs::Die;
using gpu_jobs::Pause;

constexpr uintptr_t kArenas = 0x2000'0000'0000;  // far from where the kernel puts anything by itself
constexpr uintptr_t kArenaStride = 0x10'0000'0000;
constexpr size_t kMostThreads = 16;
constexpr size_t kMostChildren = 4;  // of a thread, at a time
constexpr size_t kWipedPages = 16;
constexpr int kWrong = 3;  // a child's status
constexpr size_t kResultBytes = 512;

struct Options {
  std::string directory, park = "file", mode = "juggle", verify;
  size_t megabytes = 64, threads = 3, crowd = 0, hoard = 0;
  uint64_t seed = 1;
};

Options options;
std::string result_path;
std::atomic<bool> wrong_found{false};
std::atomic<uint64_t> steps{0}, forks{0};
Arena arenas[kMostThreads];
Arena constant;             // read by all, changed by nobody
uint64_t* wiped = nullptr;  // MADV_WIPEONFORK
uint64_t deadline_ms = 0;

uint64_t NowMs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

// The first one stays: what follows is its consequence.
void WriteResult(const char* text) {
  char line[kResultBytes];
  std::memset(line, ' ', sizeof line);
  line[sizeof line - 1] = '\n';
  std::memcpy(line, text, std::min(std::strlen(text), sizeof line - 1));
  const int file = ::open(result_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return;
  if (::write(file, line, sizeof line) != static_cast<ssize_t>(sizeof line)) ::_exit(4);
  ::close(file);
}

[[noreturn]] void Wrong(const std::string& what) {
  WriteResult(("wrong: " + what).c_str());
  wrong_found = true;
  ::_exit(kWrong);
}

void OnCrash(int signal, siginfo_t* info, void*) {
  char text[128];
  std::snprintf(text, sizeof text, "wrong: signal %d at %p in process %d", signal, info->si_addr,
                static_cast<int>(::getpid()));
  WriteResult(text);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void Expect(const std::string& wrong) {
  if (!wrong.empty()) Wrong(wrong);
}

void CheckWiped(bool child) {
  for (size_t i = 0; i < kWipedPages; ++i) {
    ShadowPage expected;
    expected.token = child ? 0 : i + 1;
    Expect(Compare(expected, wiped + i * kPageWords, child ? "a child, wiped on fork," : "the parent"));
  }
}

[[noreturn]] void RunChild(size_t index, Random random, int depth) {
  Arena& arena = arenas[index];
  arena.BecomeForkedCopy();
  switch (random.Below(5)) {
    case 0:
      ::_exit(0);
    case 1: {
      char name[] = "/bin/true";
      char* const argv[] = {name, nullptr};
      ::execv(name, argv);
      ::_exit(0);
    }
    default:
      break;
  }
  Expect(constant.CheckSome(random, "a child"));
  if (random.OneIn(2)) CheckWiped(true);
  for (size_t i = random.Below(60); i > 0; --i) Expect(arena.Step(random, "a child"));
  if (depth < 3 && random.OneIn(2)) {
    const pid_t grandchild = ::fork();
    if (grandchild == 0) RunChild(index, Random(random.Next()), depth + 1);
    if (random.OneIn(2)) ::_exit(0);  // it goes to init
    int status = 0;
    if (grandchild > 0 && ::waitpid(grandchild, &status, 0) == grandchild && status != 0) ::_exit(kWrong);
  }
  if (random.OneIn(2)) Expect(arena.CheckAll("a child"));
  ::_exit(0);
}

void* ReadOnly(void* index) {
  Random random(reinterpret_cast<uintptr_t>(index));
  for (int i = 0; i < 8; ++i) Expect(constant.CheckSome(random, "a short thread"));
  return nullptr;
}

void Reap(pid_t* children, size_t* count, bool all) {
  for (size_t i = 0; i < *count;) {
    int status = 0;
    const pid_t pid = ::waitpid(children[i], &status, all ? 0 : WNOHANG);
    if (pid == 0) {
      ++i;
      continue;
    }
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) Wrong("a child was lost");
    if (status != 0) Wrong("a child ended with status " + std::to_string(status));
    children[i] = children[--*count];
  }
}

void* Juggle(void* argument) {
  const size_t index = reinterpret_cast<uintptr_t>(argument);
  Random random(options.seed * 1000 + index + static_cast<uint64_t>(NowMs()) * 7919);
  pid_t children[kMostChildren];
  size_t count = 0;
  while (NowMs() < deadline_ms && !wrong_found) {
    Expect(arenas[index].Step(random, "its thread"));
    steps.fetch_add(1);
    if (random.OneIn(8)) Expect(constant.CheckSome(random, "a thread"));
    if (random.OneIn(200)) {
      pthread_t thread;
      if (::pthread_create(&thread, nullptr, ReadOnly, reinterpret_cast<void*>(random.Next())) == 0) {
        ::pthread_join(thread, nullptr);
      }
    }
    if (random.OneIn(60)) {
      Reap(children, &count, count == kMostChildren);
      if (count == kMostChildren) continue;
      const uint64_t seed = random.Next();
      const pid_t pid = ::fork();
      if (pid == 0) RunChild(index, Random(seed), 0);
      if (pid > 0) children[count++] = pid;
      forks.fetch_add(1);
    }
  }
  Reap(children, &count, true);
  return nullptr;
}

void JuggleAll() {
  pthread_t threads[kMostThreads];
  for (size_t i = 0; i < options.threads; ++i) {
    if (::pthread_create(&threads[i], nullptr, Juggle, reinterpret_cast<void*>(i)) != 0) Wrong("no thread");
  }
  for (size_t i = 0; i < options.threads; ++i) ::pthread_join(threads[i], nullptr);
}

void CheckEverything() {
  uint64_t digest = 0;
  for (size_t i = 0; i < options.threads; ++i) {
    Expect(arenas[i].CheckAll("the final check"));
    digest = digest * 31 + arenas[i].Digest();
  }
  Expect(constant.CheckAll("the final check"));
  CheckWiped(false);
  char text[kResultBytes];
  std::snprintf(text, sizeof text, "ok %016llx steps %llu forks %llu",
                static_cast<unsigned long long>(digest), static_cast<unsigned long long>(steps),
                static_cast<unsigned long long>(forks));
  WriteResult(text);
}

size_t ConstantPages() { return (options.megabytes << 20) / kPageSize / 4; }

// So slowly that most is still missing when something happens to it.
[[noreturn]] void Spin(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) Die("cannot write %s", path.c_str());
  const size_t pages = ConstantPages() / 2;
  for (size_t i = 0;; ++i) {
    const size_t page = i % pages;
    const auto* words =
        reinterpret_cast<const uint64_t*>(kArenas + kMostThreads * kArenaStride + page * kPageSize);
    char line[64];
    const int length =
        std::snprintf(line, sizeof line, "%zu %016llx\n", page, static_cast<unsigned long long>(Sum(words)));
    if (::write(file, line, static_cast<size_t>(length)) != length) Die("cannot write %s", path.c_str());
    Pause(1);
  }
}

// The lines of Spin(), except one that was cut off at the end.
int Verify() {
  // The same tokens as in memory.
  Arena expected;
  const size_t pages = ConstantPages();
  auto* shadows = static_cast<ShadowPage*>(std::calloc(pages, sizeof(ShadowPage)));
  expected.Prepare(kArenas, pages, shadows, options.seed + 500);
  FILE* file = std::fopen(options.verify.c_str(), "r");
  if (file == nullptr) Die("cannot read %s", options.verify.c_str());
  char line[128];
  size_t lines = 0;
  while (std::fgets(line, sizeof line, file) != nullptr && std::strchr(line, '\n') != nullptr) {
    unsigned long long page = 0, sum = 0;
    if (std::sscanf(line, "%llu %llx", &page, &sum) != 2 || page >= pages) Die("a strange line: %s", line);
    const uint64_t token = shadows[page].token;
    if (sum != (token == 0 ? 0 : SumOf(token))) Die("line %zu, page %llu is wrong: %s", lines, page, line);
    ++lines;
  }
  std::fclose(file);
  std::printf("%zu\n", lines);
  return 0;
}

void ManyForks() {
  while (NowMs() < deadline_ms) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    if (pid < 0) Wrong(std::string("fork: ") + std::strerror(errno));
    int status = 0;
    if (::waitpid(pid, &status, 0) != pid || status != 0) {
      Wrong("a child ended with status " + std::to_string(status));
    }
    forks.fetch_add(1);
  }
}

void Prepare() {
  const size_t pages = ConstantPages();  // each arena is mapped by half
  const size_t each = (options.megabytes << 20) / kPageSize * 3 / 4 / options.threads * 2;
  for (size_t i = 0; i < options.threads; ++i) {
    arenas[i].Prepare(kArenas + i * kArenaStride, each,
                      static_cast<ShadowPage*>(std::calloc(each, sizeof(ShadowPage))),
                      options.seed * 100 + i);
  }
  constant.Prepare(kArenas + kMostThreads * kArenaStride, pages,
                   static_cast<ShadowPage*>(std::calloc(pages, sizeof(ShadowPage))), options.seed + 500);
  void* memory =
      ::mmap(nullptr, kWipedPages * kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || ::madvise(memory, kWipedPages * kPageSize, MADV_WIPEONFORK) != 0) {
    Die("no memory to be wiped on fork");
  }
  wiped = static_cast<uint64_t*>(memory);
  for (size_t i = 0; i < kWipedPages; ++i) Fill(wiped + i * kPageWords, i + 1);
}

// Children that wait for the other end of a pipe to be closed.
class Crowd {
 public:
  explicit Crowd(size_t size) {
    if (::pipe2(pipe_, O_CLOEXEC) != 0) Die("no pipe: %s", std::strerror(errno));
    for (size_t i = 0; i < size; ++i) {
      const pid_t pid = ::fork();
      if (pid < 0) Wrong(std::string("fork: ") + std::strerror(errno));
      if (pid == 0) RunMember(i);
      members_.push_back(pid);
    }
  }
  // All find what they must.
  void Check() {
    ::close(pipe_[1]);
    for (const pid_t pid : members_) {
      int status = 0;
      if (::waitpid(pid, &status, 0) != pid || status != 0) {
        Wrong("a child ended with status " + std::to_string(status));
      }
    }
  }

 private:
  [[noreturn]] void RunMember(size_t number) {
    ::close(pipe_[1]);
    char byte;
    while (::read(pipe_[0], &byte, 1) < 0 && errno == EINTR) {
    }
    Random random(number);
    ::_exit(constant.CheckSome(random, "one of the crowd").empty() ? 0 : kWrong);
  }

  int pipe_[2];
  std::vector<pid_t> members_;
};

uint64_t ParkUntilWoken() {
  gpu_jobs::WriteState(options.directory + "/ready", 1, 0, "");
  if (options.park == "hook") {
    rekindle_restored self;
    if (rekindle_ready(&self) != REKINDLE_RESTORED) Die("not restored: %s", rekindle_error());
    const char* milliseconds = std::getenv("MILLISECONDS");
    return milliseconds == nullptr ? 1000 : std::strtoull(milliseconds, nullptr, 10);
  }
  for (;;) {
    FILE* file = std::fopen((options.directory + "/go").c_str(), "r");
    if (file != nullptr) {
      unsigned long long milliseconds = 0;
      const bool read = std::fscanf(file, "%llu", &milliseconds) == 1;
      std::fclose(file);
      if (read) return milliseconds;
    }
    Pause(2);
  }
}

int Run() {
  Prepare();
  struct sigaction crash = {};
  crash.sa_sigaction = OnCrash;
  crash.sa_flags = SA_SIGINFO;
  for (int signal : {SIGSEGV, SIGBUS}) ::sigaction(signal, &crash, nullptr);
  Crowd crowd(options.crowd);
  const uint64_t milliseconds = ParkUntilWoken();
  utsname machine;
  ::uname(&machine);
  result_path = options.directory + "/result." + machine.nodename;
  deadline_ms = NowMs() + milliseconds;
  if (options.mode == "spin") Spin(options.directory + "/pages." + machine.nodename);
  if (options.mode == "sleep") {
    while (::access((options.directory + "/end").c_str(), F_OK) != 0) Pause(2);
  } else if (options.mode == "forks") {
    ManyForks();
  } else if (options.mode == "hoard") {
    Crowd(options.hoard).Check();
  } else {
    JuggleAll();
  }
  crowd.Check();
  CheckEverything();
  return 0;
}

Options Parse(int argc, char** argv) {
  Options parsed;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--directory") parsed.directory = value;
    if (name == "--megabytes") parsed.megabytes = std::stoul(value);
    if (name == "--seed") parsed.seed = std::stoull(value);
    if (name == "--crowd") parsed.crowd = std::stoul(value);
    if (name == "--hoard") parsed.hoard = std::stoul(value);
    if (name == "--threads") parsed.threads = std::stoul(value);
    if (name == "--park") parsed.park = value;
    if (name == "--mode") parsed.mode = value;
    if (name == "--verify") parsed.verify = value;
  }
  if ((parsed.directory.empty() && parsed.verify.empty()) || parsed.threads < 1 ||
      parsed.threads > kMostThreads) {
    Die("see the top of memory_juggler.cc");
  }
  return parsed;
}

}  // namespace
}  // namespace rekindle::clone_jobs

int main(int argc, char** argv) {
  using namespace rekindle::clone_jobs;
  options = Parse(argc, argv);
  return options.verify.empty() ? Run() : Verify();
}
