// What this machine's NVIDIA driver does where its documents are silent: makes the bare checkpoint calls on
// test jobs (gpu_vector_job, beside this program) and prints what it saw as rows of a Markdown table, "| what
// | seen |". Asserts nothing. Needs nothing but libc; on the simulated driver (tests/gpu_sim) it tells of
// that.
//   gpu_driver_probe FOLDER [BYTES]          for the jobs' state files; BYTES of the one whose move is cut
//   off gpu_driver_probe --trace FOLDER BYTES    what the driver asks the kernel for, with a job of that size
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gpu_state/cuda_abi.h"
#include "tests/gpu_jobs/driver_api.h"
#include "tests/gpu_jobs/state_file.h"

namespace rekindle::gpu_jobs {
namespace {

namespace cuda = gpu::cuda;

constexpr unsigned kLockMilliseconds = 10'000;
constexpr double kJobMayTake = 60, kCallMayTake = 60, kStoppedMayTake = 3, kAfterwardsMayTake = 10;
constexpr char kCutOffBytes[] = "2000000000";
constexpr int kCutOffAfterMs = 100;
constexpr char kJobBytes[] = "268435456";
constexpr uint64_t kLargeArea = 32 << 20;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

void Row(const std::string& what, std::string seen) {
  std::replace(seen.begin(), seen.end(), '|', '/');
  std::replace(seen.begin(), seen.end(), '\n', ' ');
  std::printf("| %s | %s |\n", what.c_str(), seen.c_str());
  std::fflush(stdout);
}

std::string OwnPath() {
  char own[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof own);
  return std::string(own, length > 0 ? static_cast<size_t>(length) : 0);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Proc(pid_t pid, const char* rest) { return "/proc/" + std::to_string(pid) + "/" + rest; }

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  DIR* open = opendir(folder.c_str());
  if (open == nullptr) return names;
  while (const dirent* entry = readdir(open)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(open);
  return names;
}

// ---- calls, in a process of their own: one may never return

struct CallName {
  const char *name, *function;
};
constexpr CallName kCalls[] = {
    {"state", "cuCheckpointProcessGetState"},  {"thread", "cuCheckpointProcessGetRestoreThreadId"},
    {"lock", "cuCheckpointProcessLock"},       {"checkpoint", "cuCheckpointProcessCheckpoint"},
    {"restore", "cuCheckpointProcessRestore"}, {"unlock", "cuCheckpointProcessUnlock"}};

// Initialises the driver and prints the seconds that took. For each line "CALL PID MILLISECONDS" then one
// "RESULT VALUE SECONDS NAME".
int ServeCalls() {
  const double begun = Seconds();
  const DriverApi& api = LoadDriver();
  Check(api.cuInit(0), "cuInit");
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto get = reinterpret_cast<cuda::GetProcAddressFunction>(dlsym(library, "cuGetProcAddress"));
  if (get == nullptr) Die("libcuda.so.1 has no cuGetProcAddress");
  std::printf("%.3f\n", Seconds() - begun);
  std::fflush(stdout);
  char name[32];
  int pid = 0;
  unsigned timeout_ms = 0;
  while (std::scanf("%31s %d %u", name, &pid, &timeout_ms) == 3) {
    const auto* call = std::find_if(std::begin(kCalls), std::end(kCalls),
                                    [&](const CallName& c) { return std::strcmp(name, c.name) == 0; });
    if (call == std::end(kCalls)) Die("no call %s", name);
    void* function = nullptr;
    Check(get(call->function, &function, cuda::kFirstVersionWithCheckpointApi, 0), call->function);
    if (function == nullptr) Die("the driver has no %s (it is older than 570)", call->function);
    // The arguments of all calls but the first two are 64 bytes, and begin with a lock's time-out.
    alignas(8) char arguments[64] = {};
    if (std::strcmp(name, "lock") == 0) std::memcpy(arguments, &timeout_ms, sizeof timeout_ms);
    const double begin = Seconds();
    const cuda::Result result = reinterpret_cast<cuda::Result (*)(int, void*)>(function)(pid, arguments);
    const double took = Seconds() - begin;
    int value = 0;
    std::memcpy(&value, arguments, sizeof value);
    const char* text = nullptr;
    if (result != cuda::kSuccess) api.cuGetErrorName(result, &text);
    std::printf("%d %d %.6f %s\n", result, value, took, text == nullptr ? "success" : text);
    std::fflush(stdout);
  }
  return 0;
}

struct Answer {
  bool success = false;
  int value = 0;
  double seconds = 0;
  std::string text;  // "success in 0.123 s", "CUDA_ERROR_... (3) in ...", "no answer in 3 s", "died: ..."
};

class Worker {
 public:
  ~Worker() { End(); }

  void Ask(const std::string& call, pid_t pid, unsigned timeout_ms = kLockMilliseconds) {
    if (pid_ == 0) Start();
    const std::string line = Format("%s %d %u\n", call.c_str(), pid, timeout_ms);
    asked_ = Seconds();
    if (write(input_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) End();
  }

  // One that does not answer in time is killed; the next question goes to another.
  Answer Wait(double at_most = kCallMayTake) {
    Answer answer;
    std::string line;
    if (pid_ == 0 || !ReadLine(asked_ + at_most, &line)) {
      const bool late = Seconds() >= asked_ + at_most;
      answer.text = late ? Format("no answer in %.0f s", at_most) : "the caller died: " + line;
      End();
      return answer;
    }
    int result = 0;
    char name[128] = "";
    if (std::sscanf(line.c_str(), "%d %d %lf %127s", &result, &answer.value, &answer.seconds, name) != 4) {
      answer.text = line;
      return answer;
    }
    answer.success = result == 0;
    answer.text = answer.success ? Format("success in %.3f s", answer.seconds)
                                 : Format("%s (%d) in %.3f s", name, result, answer.seconds);
    return answer;
  }

  bool HasAnswer() const {
    pollfd readable{output_, POLLIN, 0};
    return pid_ == 0 || poll(&readable, 1, 0) != 0;
  }

  // Seconds that the driver's start took.
  std::string Start() {
    int down[2], up[2];
    if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) Die("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, up[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, up[1], STDERR_FILENO);
    const std::string own = OwnPath();
    const char* words[] = {own.c_str(), "--serve-calls", nullptr};
    if (posix_spawn(&pid_, own.c_str(), &actions, nullptr, const_cast<char**>(words), environ) != 0) {
      Die("cannot start %s", own.c_str());
    }
    posix_spawn_file_actions_destroy(&actions);
    close(down[0]);
    close(up[1]);
    input_ = down[1];
    output_ = up[0];
    std::string line;
    if (!ReadLine(Seconds() + kCallMayTake, &line)) Die("the driver can't be started: %s", line.c_str());
    return line;
  }

 private:
  // False at the deadline, or at the end of what it says; `line` is what there was.
  bool ReadLine(double deadline, std::string* line) {
    for (;;) {
      pollfd readable{output_, POLLIN, 0};
      const double left = deadline - Seconds();
      if (left <= 0 || poll(&readable, 1, static_cast<int>(left * 1000) + 1) == 0) return false;
      char c = 0;
      if (read(output_, &c, 1) != 1) return false;
      if (c == '\n') return true;
      line->push_back(c);
    }
  }

  void End() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(input_);
    close(output_);
    pid_ = 0;
  }

  pid_t pid_ = 0;
  int input_ = -1, output_ = -1;
  double asked_ = 0;
};

Answer Do(const std::string& call, pid_t pid, double at_most = kCallMayTake,
          unsigned timeout_ms = kLockMilliseconds) {
  static Worker& worker = *new Worker;
  worker.Ask(call, pid, timeout_ms);
  return worker.Wait(at_most);
}

std::string StateText(const Answer& answer) {
  static const char* const kNames[] = {"running", "locked",        "checkpointed",
                                       "failed",  "checkpointing", "restoring"};
  if (!answer.success) return answer.text;
  const bool known = answer.value >= 0 && answer.value < 6;
  return Format("%s (%d)", known ? kNames[answer.value] : "unknown", answer.value);
}

// ---- jobs

class Job {
 public:
  Job(const std::string& folder, const std::string& name, std::vector<std::string> options)
      : state_(folder + "/probe-" + name) {
    const std::string own = OwnPath();
    std::vector<std::string> words = {own.substr(0, own.rfind('/') + 1) + "gpu_vector_job", "--state-file",
                                      state_};
    words.insert(words.end(), options.begin(), options.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    unlink(state_.c_str());
    if (posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ) != 0) Die("no %s", argv[0]);
    const double end = Seconds() + kJobMayTake;
    while (Step() == 0 && Alive() && Seconds() < end) Pause(10);
  }
  ~Job() { End(); }

  pid_t pid() const { return pid_; }
  bool Alive() {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return !ended_;
  }
  uint64_t Step() const {
    uint64_t step = 0, digest = 0;
    return ReadState(state_, &step, &digest) ? step : 0;
  }
  // "goes on", or what became of it.
  std::string Fate() {
    const uint64_t before = Step();
    const double end = Seconds() + 5;
    while (Alive() && Step() < before + 2 && Seconds() < end) Pause(10);
    if (Alive()) return Step() > before ? "goes on" : "stands still";
    if (WIFSIGNALED(status_))
      return Format("died of signal %d (%s)", WTERMSIG(status_), strsignal(WTERMSIG(status_)));
    return Format("ended with status %d", WEXITSTATUS(status_));
  }
  void End() {
    if (ended_) return;
    kill(pid_, SIGCONT);
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    ended_ = true;
  }

 private:
  const std::string state_;
  pid_t pid_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

// ---- what a process has of the devices

struct Area {
  uint64_t start = 0, end = 0;
  std::string protection, name, flags;
  std::map<std::string, uint64_t> kib;
};

std::vector<Area> AreasOf(pid_t pid) {
  std::vector<Area> areas;
  std::istringstream lines(ReadAll(Proc(pid, "smaps")));
  for (std::string line; std::getline(lines, line);) {
    unsigned long long start = 0, end = 0, number = 0;
    char protection[8] = "", key[32] = "";
    int name = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %7s %*x %*s %*u %n", &start, &end, protection, &name) == 3) {
      areas.push_back({start, end, protection, line.substr(static_cast<size_t>(name)), "", {}});
    } else if (!areas.empty() && line.compare(0, 8, "VmFlags:") == 0) {
      areas.back().flags = line.substr(8);
    } else if (!areas.empty() && std::sscanf(line.c_str(), "%31[^:]: %llu kB", key, &number) == 2) {
      areas.back().kib[key] = number;
    }
  }
  return areas;
}

bool IsDevice(const std::string& name) { return name.compare(0, 11, "/dev/nvidia") == 0; }

std::string Devices(pid_t pid, const std::vector<Area>& areas) {
  std::map<std::string, int> open, mapped;
  int events = 0, pipes = 0, sockets = 0;
  for (const std::string& number : Names(Proc(pid, "fd"))) {
    char target[PATH_MAX];
    const ssize_t length = readlink(Proc(pid, ("fd/" + number).c_str()).c_str(), target, sizeof target);
    const std::string name(target, length > 0 ? static_cast<size_t>(length) : 0);
    if (IsDevice(name)) ++open[name];
    events += name == "anon_inode:[eventfd]";
    pipes += name.compare(0, 5, "pipe:") == 0;
    sockets += name.compare(0, 7, "socket:") == 0;
  }
  for (const Area& area : areas) {
    if (IsDevice(area.name)) ++mapped[area.name];
  }
  std::string text = "descriptors:";
  for (const auto& [name, count] : open) text += Format(" %s x %d", name.c_str(), count);
  text += Format(" (and %d eventfds, %d pipe ends, %d sockets); mappings:", events, pipes, sockets);
  for (const auto& [name, count] : mapped) text += Format(" %s x %d", name.c_str(), count);
  if (mapped.empty()) text += " none";
  return text;
}

std::string StatusFields(pid_t pid) {
  std::string text;
  std::istringstream lines(ReadAll(Proc(pid, "status")));
  for (std::string line; std::getline(lines, line);) {
    for (const char* key : {"VmRSS", "RssAnon", "RssShmem", "VmLck", "VmPin"}) {
      if (line.compare(0, std::strlen(key), key) != 0) continue;
      unsigned long long kib = 0;
      std::sscanf(line.c_str() + std::strlen(key) + 1, "%llu", &kib);
      text += Format("%s%s %llu MiB", text.empty() ? "" : ", ", key, kib >> 10);
    }
  }
  return text;
}

std::string Threads(pid_t pid) {
  std::string text;
  for (const std::string& task : Names(Proc(pid, "task"))) {
    std::string name = ReadAll(Proc(pid, ("task/" + task + "/comm").c_str()));
    while (!name.empty() && name.back() == '\n') name.pop_back();
    text += (text.empty() ? "" : ", ") + task + " " + name;
  }
  return text;
}

// Large areas of `after` that `before` has not, or has with much less in memory.
std::string Grown(const std::vector<Area>& before, const std::vector<Area>& after) {
  std::string text;
  for (const Area& area : after) {
    uint64_t had = 0;
    for (const Area& old : before) {
      if (old.start == area.start) had = old.kib.count("Rss") ? old.kib.at("Rss") : 0;
    }
    const uint64_t has = area.kib.count("Rss") ? area.kib.at("Rss") : 0;
    if (has < had || (has - had) << 10 < kLargeArea) continue;
    auto number = [&area](const char* key) {
      return static_cast<unsigned long long>(area.kib.count(key) ? area.kib.at(key) >> 10 : 0);
    };
    text += Format("%s%llu MiB %s %s (huge %llu MiB, locked %llu MiB, flags%s)", text.empty() ? "" : "; ",
                   static_cast<unsigned long long>((has - had) >> 10), area.protection.c_str(),
                   area.name.empty() ? "anonymous" : area.name.c_str(), number("AnonHugePages"),
                   number("Locked"), area.flags.c_str());
  }
  return text.empty() ? "nothing of 32 MiB or more" : text;
}

// What lies where devices were mapped.
std::string InTheirPlace(const std::vector<Area>& before, const std::vector<Area>& after) {
  int holes = 0, devices = 0, reserved = 0, other = 0;
  for (const Area& area : before) {
    if (!IsDevice(area.name)) continue;
    const Area* found = nullptr;
    for (const Area& now : after) {
      if (now.start < area.end && area.start < now.end) found = &now;
    }
    if (found == nullptr) {
      ++holes;
    } else if (IsDevice(found->name)) {
      ++devices;
    } else {
      ++(found->protection.compare(0, 3, "---") == 0 ? reserved : other);
    }
  }
  return Format("holes %d, devices %d, reserved areas %d, other memory %d", holes, devices, reserved, other);
}

// ---- the probes

void ProbeCycle(const std::string& folder) {
  Job job(folder, "cycle", {"--bytes", kJobBytes, "--step-ms", "20"});
  if (!job.Alive()) return Row("the test job", job.Fate());
  Row("threads of a CUDA process", Threads(job.pid()));
  const Answer thread = Do("thread", job.pid());
  Row("its restore thread", thread.success ? Format("%d", thread.value) : thread.text);
  const std::vector<Area> running = AreasOf(job.pid());
  Row("it has, running", Devices(job.pid(), running));
  Row("host memory, running", StatusFields(job.pid()));
  const Answer state = Do("state", job.pid());
  Row("state", StateText(state) + Format(", after %.3f s", state.seconds));
  for (const char* wrong : {"checkpoint", "restore", "unlock"}) {
    Row(std::string(wrong) + " of a running process", Do(wrong, job.pid()).text);
  }
  Row("lock", Do("lock", job.pid()).text);
  Row("lock of a locked process", Do("lock", job.pid(), kCallMayTake, 1000).text);
  {
    Worker mover, asker;
    Row("start of the driver in a process that only makes calls", mover.Start() + " s");
    asker.Start();
    mover.Ask("checkpoint", job.pid());
    Pause(5);  // for it to be under way, as far as that can be had
    asker.Ask("state", job.pid());
    const Answer moved = mover.Wait();
    const Answer meanwhile = asker.Wait();
    Row("checkpoint of 256 MiB", moved.text);
    Row("state, asked beside it", StateText(meanwhile) + Format(", after %.3f s", meanwhile.seconds));
  }
  Row("state afterwards", StateText(Do("state", job.pid())));
  const std::vector<Area> out = AreasOf(job.pid());
  Row("it has, checkpointed", Devices(job.pid(), out));
  Row("where devices were mapped", InTheirPlace(running, out));
  Row("host memory, checkpointed", StatusFields(job.pid()));
  Row("areas that have grown", Grown(running, out));
  Row("restore", Do("restore", job.pid()).text);
  Row("state afterwards", StateText(Do("state", job.pid())));
  Row("unlock", Do("unlock", job.pid()).text);
  const std::vector<Area> back = AreasOf(job.pid());
  Row("where devices were mapped, restored", InTheirPlace(running, back));
  Row("host memory, restored", StatusFields(job.pid()));
  Row("the job", job.Fate());
}

void ProbeStrangers(const std::string& folder) {
  Row("state of a PID that is nobody's", StateText(Do("state", 0x3ffffe)));
  Row("state of a process without CUDA", StateText(Do("state", getppid())));
  {
    Job job(folder, "loaded", {"--load-only", "--step-ms", "20"});
    Row("state of a process that has loaded libcuda", StateText(Do("state", job.pid())));
  }
  Job job(folder, "initialised", {"--init-only", "--step-ms", "20"});
  Row("state of a process that has called cuInit", StateText(Do("state", job.pid())));
  Row("it has", Devices(job.pid(), AreasOf(job.pid())));
  const Answer locked = Do("lock", job.pid());
  Row("lock of it", locked.text);
  if (!locked.success) return;
  Row("checkpoint of it", Do("checkpoint", job.pid()).text);
  Row("it has, checkpointed", Devices(job.pid(), AreasOf(job.pid())));
  Row("restore of it", Do("restore", job.pid()).text);
  Row("unlock of it", Do("unlock", job.pid()).text);
}

void ProbeBusyLock(const std::string& folder) {
  Job job(folder, "busy", {"--bytes", "16777216", "--spin-ms", "3000", "--step-ms", "1"});
  Row("lock with a time-out of 0.5 s, of a job with a kernel of 3 s",
      Do("lock", job.pid(), kCallMayTake, 500).text);
  Row("state afterwards", StateText(Do("state", job.pid())));
}

// Each by the same new caller: an answer that was another one's shows here.
std::string DoAll(pid_t pid, std::initializer_list<const char*> calls) {
  std::string text;
  for (const char* call : calls) {
    const Answer answer = Do(call, pid, kAfterwardsMayTake);
    text += std::string(text.empty() ? "" : "; ") + call + ": ";
    if (std::strcmp(call, "state") == 0) {
      text += StateText(answer);
    } else {
      text += answer.success && std::strcmp(call, "thread") == 0 ? Format("%d", answer.value) : answer.text;
    }
  }
  return text;
}

void ProbeStopped(const std::string& folder) {
  Job job(folder, "stopped", {"--bytes", "16777216", "--step-ms", "20"});
  kill(job.pid(), SIGSTOP);
  // The caller is killed.
  Row("state of a stopped process", StateText(Do("state", job.pid(), kStoppedMayTake)));
  kill(job.pid(), SIGCONT);
  Row("the job, continued", job.Fate());
  Row("a new caller, after the one that was killed",
      DoAll(job.pid(), {"state", "thread", "lock", "state", "unlock", "state"}));
  Row("the job", job.Fate());
}

// A caller is killed in the middle of a move.
void ProbeCutOff(const std::string& folder, const char* bytes) {
  Job job(folder, "cut-off", {"--bytes", bytes, "--step-ms", "20"});
  const std::string what =
      Format("a caller killed %d ms into a checkpoint of %s bytes", kCutOffAfterMs, bytes);
  if (!job.Alive()) return Row(what, job.Fate());
  const Answer locked = Do("lock", job.pid());
  if (!locked.success) return Row(what, locked.text);
  {
    Worker mover;
    mover.Start();
    mover.Ask("checkpoint", job.pid());
    Pause(kCutOffAfterMs);
    Row(what, mover.HasAnswer() ? "it had its answer by then" : "it had no answer yet");
  }
  Row("a new caller then", DoAll(job.pid(), {"state", "thread", "state", "state"}));
  Pause(1000);
  const Answer state = Do("state", job.pid(), kAfterwardsMayTake);
  Row("state 1 s later", StateText(state));
  if (state.success && state.value == 2) Row("restore", DoAll(job.pid(), {"restore", "state"}));
  Row("unlock", DoAll(job.pid(), {"unlock", "state", "state"}));
  Row("the job", job.Fate());
}

// A first call that meets the process while its memory is out.
void ProbeFirstCalls(const std::string& folder) {
  for (const char* call : {"copy", "event", "stream", "context"}) {
    Job job(folder, call, {"--bytes", "16777216", "--step-ms", "1200", "--first-call", call});
    const std::string what =
        std::string("a job whose first call while checkpointed is ") +
        (std::strcmp(call, "copy") == 0 ? "a copy" : std::string("the ") + call + "'s synchronize");
    if (!job.Alive()) {
      Row(what, job.Fate());
      continue;
    }
    // From the begin of a pause on.
    for (const uint64_t step = job.Step(); job.Step() == step && job.Alive();) Pause(5);
    const double begin = Seconds();
    const Answer locked = Do("lock", job.pid());
    const Answer out = locked.success ? Do("checkpoint", job.pid()) : locked;
    if (!out.success || Seconds() > begin + 1.1) {
      Row(what, out.success ? "not told: it was checkpointed too late" : out.text);
      continue;
    }
    Pause(1500);  // beyond its pause: it has made the call by then
    const bool lives = job.Alive();
    if (lives && Do("restore", job.pid()).success) Do("unlock", job.pid());
    Row(what, (lives ? "waits; afterwards it " : "") + job.Fate());
  }
}

// A thread that dies of a call while its memory is out, held in that moment: does it live when it goes on
// only when the memory is back?
void ProbeHeldFault(const std::string& folder) {
  Job job(folder, "held", {"--bytes", "16777216", "--step-ms", "1200", "--first-call", "context"});
  const std::string what = "a synchronize while checkpointed, the thread held at its fault";
  if (!job.Alive()) return Row(what, job.Fate());
  if (ptrace(PTRACE_SEIZE, job.pid(), 0, 0) != 0)
    return Row(what, std::string("not traced: ") + strerror(errno));
  for (const uint64_t step = job.Step(); job.Step() == step;) Pause(5);
  const std::vector<Area> running = AreasOf(job.pid());
  const Answer locked = Do("lock", job.pid());
  const Answer out = locked.success ? Do("checkpoint", job.pid()) : locked;
  if (!out.success) return Row(what, out.text);
  int status = 0;
  const double end = Seconds() + 5;
  while (waitpid(job.pid(), &status, __WALL | WNOHANG) == 0 && Seconds() < end) Pause(5);
  if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSEGV)
    return Row(what, Format("no fault, status %x", status));
  siginfo_t info = {};
  ptrace(PTRACE_GETSIGINFO, job.pid(), 0, &info);
  user_regs_struct registers = {};
  ptrace(PTRACE_GETREGS, job.pid(), 0, &registers);
  const auto fault = reinterpret_cast<uint64_t>(info.si_addr);
  std::string at = "nothing", before = "nothing", code = "?";
  for (const Area& area : AreasOf(job.pid())) {
    if (area.start <= fault && fault < area.end)
      at = area.protection + " " + (area.name.empty() ? "anonymous" : area.name);
    if (area.start <= registers.rip && registers.rip < area.end)
      code =
          Format("%s+%llx", area.name.c_str(), static_cast<unsigned long long>(registers.rip - area.start));
  }
  for (const Area& area : running) {
    if (area.start <= fault && fault < area.end)
      before = area.protection + " " + (area.name.empty() ? "anonymous" : area.name);
  }
  Row(what,
      Format("at %llx (%s; while it ran %s), code in %s, si_code %d", static_cast<unsigned long long>(fault),
             at.c_str(), before.c_str(), code.c_str(), info.si_code));
  const Answer back = Do("restore", job.pid());
  const Answer unlocked = back.success ? Do("unlock", job.pid()) : back;
  ptrace(PTRACE_DETACH, job.pid(), 0, 0);
  Row("that thread, let go when the memory was back", unlocked.text + "; the job " + job.Fate());
}

void ProbeManaged(const std::string& folder) {
  Job job(folder, "managed", {"--bytes", "16777216", "--step-ms", "20", "--managed"});
  Row("a job with managed memory has", Devices(job.pid(), AreasOf(job.pid())));
  Row("lock of it", Do("lock", job.pid()).text);
  const Answer out = Do("checkpoint", job.pid());
  Row("checkpoint of it", out.text);
  if (out.success) Row("restore of it", Do("restore", job.pid()).text);
  Row("state afterwards", StateText(Do("state", job.pid())));
  Row("unlock of it", Do("unlock", job.pid()).text);
  Row("the job", job.Fate());
}

// What the driver's own thread in the process asks the kernel for during one call.
struct KernelCall {
  uint64_t number = 0, arguments[4] = {};
  int64_t result = 0;
  double begin = 0, end = 0;
};

std::vector<KernelCall> TracedCall(const std::string& call, pid_t pid, pid_t thread, Answer* answer) {
  std::vector<KernelCall> calls;
  Worker worker;
  worker.Start();
  if (ptrace(PTRACE_SEIZE, thread, 0, PTRACE_O_TRACESYSGOOD) != 0) {
    answer->text = strerror(errno);
    return calls;
  }
  ptrace(PTRACE_INTERRUPT, thread, 0, 0);
  const double begun = Seconds();
  worker.Ask(call, pid);
  bool inside = false, over = false;
  for (;;) {
    int status = 0;
    const pid_t stopped = waitpid(thread, &status, __WALL | WNOHANG);
    if (stopped == 0) {
      if (!over && worker.HasAnswer()) {
        over = true;
        ptrace(PTRACE_INTERRUPT, thread, 0, 0);
      }
      usleep(20);
      continue;
    }
    if (stopped < 0 || !WIFSTOPPED(status)) break;
    if (status >> 16 == PTRACE_EVENT_STOP && over) {
      ptrace(PTRACE_DETACH, thread, 0, 0);
      break;
    }
    if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      user_regs_struct registers = {};
      ptrace(PTRACE_GETREGS, thread, 0, &registers);
      if (!inside) {
        KernelCall next;
        next.number = registers.orig_rax;
        next.arguments[0] = registers.rdi;
        next.arguments[1] = registers.rsi;
        next.arguments[2] = registers.rdx;
        next.arguments[3] = registers.r10;
        next.begin = next.end = Seconds() - begun;
        calls.push_back(next);
      } else if (!calls.empty()) {
        calls.back().result = static_cast<int64_t>(registers.rax);
        calls.back().end = Seconds() - begun;
      }
      inside = !inside;
    }
    if (over) ptrace(PTRACE_INTERRUPT, thread, 0, 0);
    ptrace(PTRACE_SYSCALL, thread, 0, 0);
  }
  *answer = worker.Wait();
  return calls;
}

void TraceRows(const std::string& what, const std::vector<KernelCall>& calls) {
  std::map<uint64_t, std::pair<int, double>> by_number;
  for (const KernelCall& call : calls) {
    ++by_number[call.number].first;
    by_number[call.number].second += call.end - call.begin;
  }
  std::string text;
  for (const auto& [number, count] : by_number)
    text += Format("%s%llu x %d (%.3f s)", text.empty() ? "" : ", ", static_cast<unsigned long long>(number),
                   count.first, count.second);
  Row(what + ": system calls by number", text);
  // The large ones, and how many of each size there are.
  std::map<std::string, int> sizes;
  std::string large;
  int listed = 0;
  for (const KernelCall& call : calls) {
    if (call.number != SYS_mmap && call.number != SYS_mprotect && call.number != SYS_munmap &&
        call.number != SYS_mremap && call.number != SYS_madvise)
      continue;
    ++sizes[Format("%llu(%llu KiB, %llx, %llx)", static_cast<unsigned long long>(call.number),
                   static_cast<unsigned long long>(call.arguments[1] >> 10),
                   static_cast<unsigned long long>(call.arguments[2]),
                   static_cast<unsigned long long>(call.number == SYS_mmap ? call.arguments[3] : 0))];
    if (call.arguments[1] >= (4u << 20) && ++listed <= 40)
      large += Format(
          " [%.3f-%.3f: %llu(%llx, %llu MiB, %llx, %llx) = %llx]", call.begin, call.end,
          static_cast<unsigned long long>(call.number), static_cast<unsigned long long>(call.arguments[0]),
          static_cast<unsigned long long>(call.arguments[1] >> 20),
          static_cast<unsigned long long>(call.arguments[2]),
          static_cast<unsigned long long>(call.arguments[3]), static_cast<unsigned long long>(call.result));
  }
  std::string counted;
  for (const auto& [size, count] : sizes) {
    if (counted.size() < 1500) counted += Format(" %s x %d", size.c_str(), count);
  }
  Row(what + ": of memory", counted);
  Row(what + ": large ones", large);
}

// Page faults and processor seconds, in programs and in the kernel, of a process so far.
struct Spent {
  unsigned long long faults = 0;
  double user = 0, system = 0;
};
Spent SpentBy(pid_t pid) {
  const std::string stat = ReadAll(Proc(pid, "stat"));
  Spent spent;
  unsigned long long user = 0, system = 0;
  std::sscanf(stat.c_str() + stat.rfind(')') + 1, " %*c %*d %*d %*d %*d %*d %*u %llu %*u %*u %*u %llu %llu",
              &spent.faults, &user, &system);
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  spent.user = static_cast<double>(user) / ticks;
  spent.system = static_cast<double>(system) / ticks;
  return spent;
}
std::string SpentSince(const Spent& before, pid_t pid) {
  const Spent now = SpentBy(pid);
  return Format("; %llu page faults, %.2f s in programs, %.2f s in the kernel", now.faults - before.faults,
                now.user - before.user, now.system - before.system);
}

// `bytes` of a job's device memory out and back, three times, traced the last time.
int Trace(const std::string& folder, const char* bytes) {
  Job job(folder, "traced", {"--bytes", bytes, "--step-ms", "20"});
  if (!job.Alive()) {
    Row("the test job", job.Fate());
    return 1;
  }
  const Answer thread = Do("thread", job.pid());
  for (int i = 0; i < 3; ++i) {
    const std::vector<Area> running = AreasOf(job.pid());
    Do("lock", job.pid());
    Answer out, back;
    std::vector<KernelCall> on_the_way_out, on_the_way_back;
    const Spent before = SpentBy(job.pid());
    if (i < 2) {
      out = Do("checkpoint", job.pid());
    } else {
      on_the_way_out = TracedCall("checkpoint", job.pid(), thread.value, &out);
    }
    Row("checkpoint", out.text + SpentSince(before, job.pid()));
    const Spent half = SpentBy(job.pid());
    if (i == 1) Row("areas that have grown", Grown(running, AreasOf(job.pid())));
    if (i < 2) {
      back = Do("restore", job.pid());
    } else {
      on_the_way_back = TracedCall("restore", job.pid(), thread.value, &back);
    }
    Row("restore", back.text + SpentSince(half, job.pid()));
    Do("unlock", job.pid());
    if (i < 2) continue;
    TraceRows("checkpoint", on_the_way_out);
    TraceRows("restore", on_the_way_back);
  }
  Row("the job", job.Fate());
  return 0;
}

int Probe(const std::string& folder, const char* cut_off_bytes) {
  // A job that the driver crashes need not leave a core file of its memory.
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(SIGPIPE, SIG_IGN);
  ProbeCycle(folder);
  ProbeStrangers(folder);
  ProbeBusyLock(folder);
  ProbeStopped(folder);
  ProbeFirstCalls(folder);
  ProbeHeldFault(folder);
  ProbeCutOff(folder, cut_off_bytes);
  ProbeManaged(folder);
  return 0;
}

}  // namespace
}  // namespace rekindle::gpu_jobs

int main(int argc, char** argv) {
  using namespace rekindle::gpu_jobs;
  if (argc == 2 && std::strcmp(argv[1], "--serve-calls") == 0) return ServeCalls();
  if (argc == 4 && std::strcmp(argv[1], "--trace") == 0) return Trace(argv[2], argv[3]);
  if (argc == 2 || (argc == 3 && argv[1][0] != '-'))
    return Probe(argv[1], argc == 3 ? argv[2] : kCutOffBytes);
  std::fputs("usage: gpu_driver_probe FOLDER [BYTES]\n       gpu_driver_probe --trace FOLDER BYTES\n",
             stderr);
  return 2;
}
