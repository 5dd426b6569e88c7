// The simulated driver from outside: its libraries are loaded in processes of their own, which this test
// starts and tells what to do (test_puppet.cc).
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {
namespace {

namespace cuda = gpu::cuda;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kGpu0[] = "GPU-00000000-0000-0000-0000-000000000001";
constexpr char kGpu1[] = "GPU-00000000-0000-0000-0000-000000000002";
constexpr char kSmallGpu[] = "GPU-00000000-0000-0000-0000-000000000003";
constexpr char kOtherModel[] = "GPU-00000000-0000-0000-0000-000000000004";
constexpr uint64_t kGpuBytes = 64 << 20, kContextBytes = 8 << 20, kBytes = 4 << 20;
constexpr int kAnswerSeconds = 20;

std::string Folder() {
  char own[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof(own));
  return std::filesystem::path(std::string(own, static_cast<size_t>(length))).parent_path().string();
}

// A program with pipes to its standard input and output; killed at the end if it still runs.
class Child {
 public:
  explicit Child(std::vector<std::string> words) {
    int in[2], out[2];
    EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
  }
  ~Child() {
    Kill();
    close(to_);
    close(from_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  std::string id() const { return std::to_string(pid_); }

  void Send(const std::string& line) {
    const std::string whole = line + "\n";
    EXPECT_EQ(write(to_, whole.data(), whole.size()), static_cast<ssize_t>(whole.size()));
  }
  // Is there an answer already?
  bool Answered(int milliseconds) {
    pollfd wait{from_, POLLIN, 0};
    return poll(&wait, 1, milliseconds) == 1;
  }
  std::string Read() {
    std::string line;
    for (char next; Answered(kAnswerSeconds * 1000) && read(from_, &next, 1) == 1;) {
      if (next == '\n') return line;
      line += next;
    }
    return line.empty() ? "nothing" : line;
  }
  std::string Do(const std::string& line) {
    Send(line);
    return Read();
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    Wait();
  }
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
};

class GpuSimTest : public testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    char folder[] = "/tmp/gpu_sim_test.XXXXXX";
    folder_ = mkdtemp(folder);
    socket_ = folder_ + "/server";
    programs_ = Folder() + "/gpu_sim";
    StartServer();
    setenv(kServerVariable, socket_.c_str(), 1);
    setenv("LD_LIBRARY_PATH", programs_.c_str(), 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    caller_ = Start();
    EXPECT_EQ(caller_->Do("init"), "0");
  }
  void TearDown() override {
    caller_.reset();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void StartServer() {
    const auto gpu = [](const char* uuid, const char* model, uint64_t bytes) {
      return std::string(uuid) + "," + model + "," + std::to_string(bytes);
    };
    server_ = std::make_unique<Child>(std::vector<std::string>{
        programs_ + "/gpu_sim_server", "--socket", socket_, "--gpu", gpu(kGpu0, "SimA", kGpuBytes), "--gpu",
        gpu(kGpu1, "SimA", kGpuBytes), "--gpu", gpu(kSmallGpu, "SimA", kContextBytes + kBytes / 2), "--gpu",
        gpu(kOtherModel, "SimB", kGpuBytes)});
    ASSERT_EQ(server_->Read(), "ready");
  }
  std::unique_ptr<Child> Start() {
    return std::make_unique<Child>(std::vector<std::string>{programs_ + "/gpu_sim_test_puppet"});
  }
  // A process with memory on GPU 0, filled and stepped once. Its sum is `sum_`.
  std::unique_ptr<Child> StartTarget() {
    auto target = Start();
    for (const std::string& line :
         {std::string("init"), std::string("context 0"), "alloc " + std::to_string(kBytes)}) {
      EXPECT_THAT(target->Do(line), StartsWith("0")) << line;
    }
    EXPECT_EQ(target->Do("fill 0 7"), "0");
    EXPECT_EQ(target->Do("step 0 3 5"), "0");
    sum_ = ExpectedSum(1);
    EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
    return target;
  }
  // After fill 0 7 and so many times step 0 3 5.
  static uint64_t ExpectedSum(int steps) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < kBytes / 8; ++i) {
      uint64_t z = 7 + (i + 1) * 0x9e3779b97f4a7c15u;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      z ^= z >> 31;
      for (int step = 0; step < steps; ++step) z = 3 * z + 5;
      sum += z * (2 * i + 1);
    }
    return sum;
  }
  std::string Control(const std::string& words) {
    std::string lines = words;
    for (char& c : lines) c = c == ' ' ? '\n' : c;
    Reply reply;
    std::string answer;
    EXPECT_TRUE(AskOnce({.op = Op::kControl}, lines + "\n", &reply, &answer));
    EXPECT_EQ(reply.result, cuda::kSuccess) << answer;
    return answer;
  }
  // What the server counts as used on the GPUs, once it is `wanted` (a client's end takes a moment to
  // arrive).
  void ExpectUsed(const std::vector<uint64_t>& wanted) {
    std::vector<uint64_t> used;
    for (int tries = 0; tries < kAnswerSeconds * 100 && used != wanted; ++tries) {
      if (tries > 0) usleep(10'000);
      Reply reply;
      std::string text;
      ASSERT_TRUE(AskOnce({.op = Op::kHello}, "", &reply, &text));
      used.clear();
      for (const Gpu& gpu : ArrayFromText<Gpu>(text)) used.push_back(gpu.used_bytes);
      used.resize(wanted.size());
    }
    EXPECT_EQ(used, wanted);
  }
  std::string Call(const std::string& call, const Child& target, const std::string& more = "") {
    return caller_->Do(call + " " + target.id() + more);
  }
  void ExpectState(const Child& target, cuda::ProcessState state) {
    EXPECT_EQ(Call("state", target), "0 " + std::to_string(static_cast<int>(state)));
  }
  void Checkpoint(const Child& target) {
    EXPECT_EQ(Call("lock", target, " 10000"), "0");
    EXPECT_EQ(Call("checkpoint", target), "0");
    ExpectState(target, cuda::ProcessState::kCheckpointed);
  }
  void Resume(const Child& target) {
    EXPECT_EQ(Call("restore", target), "0");
    EXPECT_EQ(Call("unlock", target), "0");
    ExpectState(target, cuda::ProcessState::kRunning);
  }
  // Exit status of a program of the folder.
  int RunProgram(std::vector<std::string> words, std::string* output) {
    words[0] = programs_ + "/" + words[0];
    Child program(words);
    *output = program.Read();
    return WEXITSTATUS(program.Wait());
  }

  std::string folder_, socket_, programs_;
  std::unique_ptr<Child> server_, caller_;
  uint64_t sum_ = 0;
};

std::string Code(int result) { return std::to_string(result); }

TEST_F(GpuSimTest, DataIsTheSameAfterAWholeRound) {
  auto target = StartTarget();
  ExpectUsed({kContextBytes + kBytes});
  for (int round = 0; round < 3; ++round) {
    Checkpoint(*target);
    ExpectUsed({0});
    Resume(*target);
    ExpectUsed({kContextBytes + kBytes});
    EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(ExpectedSum(round + 1)));
    EXPECT_EQ(target->Do("step 0 3 5"), "0");
    EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(ExpectedSum(round + 2)));
  }
  EXPECT_EQ(target->Do("free 0"), "0");
  ExpectUsed({kContextBytes});
  EXPECT_THAT(Control("stats"), HasSubstr("\"max_used\": " + std::to_string(kContextBytes + kBytes + 4096)));
}

TEST_F(GpuSimTest, ACheckpointedProcessHasNoTieToTheServer) {
  auto target = StartTarget();
  const auto ties = [&] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + target->id() + "/map_files")) {
      std::error_code ignored;
      if (std::filesystem::read_symlink(entry, ignored).string().find("memfd") != std::string::npos) ++count;
    }
    return count;
  };
  EXPECT_EQ(ties(), 1);
  Checkpoint(*target);
  EXPECT_EQ(ties(), 0);
  // It needs nothing of the server until it is restored, on another one too.
  server_.reset();
  StartServer();
  Resume(*target);
  EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
}

TEST_F(GpuSimTest, EachCallInEachState) {
  using State = cuda::ProcessState;
  const std::string calls[] = {"lock", "checkpoint", "restore", "unlock"};
  struct Row {
    State state;
    std::array<std::pair<int, State>, 4> after;  // per call: result, state
  };
  constexpr int kOk = cuda::kSuccess, kNo = cuda::kIllegalState;
  const Row rows[] = {
      {State::kRunning,
       {{{kOk, State::kLocked}, {kNo, State::kRunning}, {kNo, State::kRunning}, {kNo, State::kRunning}}}},
      {State::kLocked,
       {{{kNo, State::kLocked}, {kOk, State::kCheckpointed}, {kNo, State::kLocked}, {kOk, State::kRunning}}}},
      {State::kCheckpointed,
       {{{kNo, State::kCheckpointed},
         {kNo, State::kCheckpointed},
         {kOk, State::kLocked},
         {kNo, State::kCheckpointed}}}},
      {State::kFailed,
       {{{kNo, State::kFailed}, {kNo, State::kFailed}, {kNo, State::kFailed}, {kNo, State::kFailed}}}}};
  for (const Row& row : rows) {
    for (size_t i = 0; i < std::size(calls); ++i) {
      SCOPED_TRACE(calls[i] + " in state " + std::to_string(static_cast<int>(row.state)));
      auto target = Start();
      ASSERT_EQ(target->Do("init"), "0");
      if (row.state == State::kFailed) {
        Control("inject lock --nth 1 --fail 999 --then-failed");
        EXPECT_EQ(Call("lock", *target, " 0"), Code(cuda::kUnknown));
      }
      if (row.state == State::kLocked || row.state == State::kCheckpointed) {
        EXPECT_EQ(Call("lock", *target, " 0"), "0");
      }
      if (row.state == State::kCheckpointed) {
        EXPECT_EQ(Call("checkpoint", *target), "0");
      }
      ExpectState(*target, row.state);
      EXPECT_EQ(Call(calls[i], *target, calls[i] == "lock" ? " 0" : ""), Code(row.after[i].first));
      ExpectState(*target, row.after[i].second);
    }
  }
}

TEST_F(GpuSimTest, NotACudaProcess) {
  auto none = Start();
  EXPECT_THAT(none->Do("version"), StartsWith("0 "));  // the library is loaded, cuInit was not called
  EXPECT_THAT(Call("state", *none), StartsWith(Code(cuda::kNotInitialized)));
  EXPECT_THAT(Call("thread", *none), StartsWith(Code(cuda::kNotInitialized)));
  EXPECT_EQ(Call("lock", *none, " 0"), Code(cuda::kNotInitialized));
  EXPECT_THAT(none->Do("state " + caller_->id()), StartsWith(Code(cuda::kNotInitialized)));
  const std::string gone = none->id();
  none->Kill();
  EXPECT_THAT(caller_->Do("state " + gone), StartsWith(Code(cuda::kOperatingSystem)));
  EXPECT_THAT(caller_->Do("state 0"), StartsWith(Code(cuda::kInvalidValue)));
}

TEST_F(GpuSimTest, AForkedChildIsNotACudaProcess) {
  auto target = StartTarget();
  const std::string answer = target->Do("fork");
  ASSERT_THAT(answer, StartsWith("0 "));
  EXPECT_THAT(caller_->Do("state " + answer.substr(2)), StartsWith(Code(cuda::kNotInitialized)));
  Checkpoint(*target);
  ExpectUsed({0});
  Resume(*target);
  EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
}

TEST_F(GpuSimTest, ReservedBytesMustBeZero) {
  auto target = StartTarget();
  EXPECT_EQ(Call("lock-reserved", *target, " 0"), Code(cuda::kInvalidValue));
  EXPECT_EQ(Call("checkpoint", *target, " reserved"), Code(cuda::kInvalidValue));
  EXPECT_EQ(Call("unlock", *target, " reserved"), Code(cuda::kInvalidValue));
  ExpectState(*target, cuda::ProcessState::kRunning);
}

TEST_F(GpuSimTest, RestoreThreadIsAThreadOfTheTarget) {
  auto target = StartTarget();
  const std::string answer = Call("thread", *target);
  ASSERT_THAT(answer, StartsWith("0 "));
  EXPECT_TRUE(std::filesystem::exists("/proc/" + target->id() + "/task/" + answer.substr(2)));
  EXPECT_NE(answer.substr(2), target->id());
}

TEST_F(GpuSimTest, LockTimesOutOnALongKernelAndLeavesTheJobRunning) {
  auto target = StartTarget();
  EXPECT_EQ(target->Do("spin 600000"), "0");
  EXPECT_EQ(Call("lock", *target, " 50"), Code(cuda::kNotReady));
  ExpectState(*target, cuda::ProcessState::kRunning);
  EXPECT_THAT(target->Do("device 0"), StartsWith("0 "));  // its calls do not wait
}

TEST_F(GpuSimTest, LockWaitsForQueuedWorkAndHoldsNewCalls) {
  auto target = StartTarget();
  EXPECT_EQ(target->Do("spin 200"), "0");
  EXPECT_EQ(target->Do("step 0 3 5"), "0");
  EXPECT_EQ(Call("lock", *target, " 0"), "0");
  target->Send("sum 0");
  EXPECT_FALSE(target->Answered(100));
  EXPECT_EQ(Call("checkpoint", *target), "0");
  EXPECT_FALSE(target->Answered(0));
  Resume(*target);
  EXPECT_EQ(target->Read(), "0 " + std::to_string(ExpectedSum(2)));
}

TEST_F(GpuSimTest, RestoreOntoAnotherGpu) {
  auto target = StartTarget();
  const auto pair = [](const char* from, const char* to) { return std::string(" ") + from + " " + to; };
  Checkpoint(*target);
  const std::string wrong[] = {
      pair(kGpu1, kGpu0),        // says nothing of the GPU that is used
      pair(kGpu0, kOtherModel),  // another model
      pair(kGpu0, "GPU-00000000-0000-0000-0000-0000000000ff"),
      pair("GPU-00000000-0000-0000-0000-0000000000ff", kGpu0),
      pair(kGpu0, kGpu1) + pair(kGpu1, kGpu1),  // two onto one
  };
  for (const std::string& pairs : wrong) {
    EXPECT_EQ(Call("restore", *target, pairs), Code(cuda::kInvalidValue)) << pairs;
  }
  Control("set missing-room-is-final 0");
  EXPECT_EQ(Call("restore", *target, pair(kGpu0, kSmallGpu)), Code(cuda::kOutOfMemory));
  Control("set driver-version 12080");
  EXPECT_EQ(Call("restore", *target, pair(kGpu0, kGpu1)), Code(cuda::kInvalidValue));
  Control("set driver-version 13000");
  Control("set pairs-name-visible-gpus 1");
  EXPECT_EQ(Call("restore", *target, pair(kGpu0, kGpu1)), Code(cuda::kInvalidValue));
  Control("set pairs-name-visible-gpus 0");
  ExpectState(*target, cuda::ProcessState::kCheckpointed);
  ExpectUsed({0, 0, 0, 0});
  EXPECT_EQ(Call("restore", *target, pair(kGpu0, kGpu1)), "0");
  EXPECT_EQ(Call("unlock", *target), "0");
  ExpectUsed({0, kContextBytes + kBytes, 0, 0});
  EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
  EXPECT_EQ(target->Do("device 0"), std::string("0 ") + kGpu1 + " SimA");
}

TEST_F(GpuSimTest, RestoreWithoutRoomIsTheLastOne) {
  auto target = StartTarget();
  Checkpoint(*target);
  Control("reserve " + std::string(kGpu0) + " " + std::to_string(kGpuBytes - kContextBytes));
  EXPECT_EQ(Call("restore", *target), Code(cuda::kOutOfMemory));
  Control("reserve " + std::string(kGpu0) + " 0");
  EXPECT_EQ(Call("restore", *target), Code(cuda::kOperatingSystem));
  ExpectState(*target, cuda::ProcessState::kCheckpointed);
  EXPECT_EQ(Call("unlock", *target), Code(cuda::kIllegalState));
}

TEST_F(GpuSimTest, RestoreWithoutRoomCanBeTriedAgainWhereTheDriverCan) {
  Control("set missing-room-is-final 0");
  auto target = StartTarget();
  Checkpoint(*target);
  Control("reserve " + std::string(kGpu0) + " " + std::to_string(kGpuBytes - kContextBytes));
  EXPECT_EQ(Call("restore", *target), Code(cuda::kOutOfMemory));
  ExpectState(*target, cuda::ProcessState::kCheckpointed);
  ExpectUsed({kGpuBytes - kContextBytes});
  Control("reserve " + std::string(kGpu0) + " 0");
  Resume(*target);
  EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
}

TEST_F(GpuSimTest, DeviceMemoryIsLimited) {
  auto target = StartTarget();
  EXPECT_THAT(target->Do("alloc " + std::to_string(kGpuBytes)), StartsWith(Code(cuda::kOutOfMemory)));
  EXPECT_THAT(target->Do("alloc 0"), StartsWith(Code(cuda::kInvalidValue)));
  ExpectUsed({kContextBytes + kBytes});
}

TEST_F(GpuSimTest, AnOldDriverHasOnlyTheUtility) {
  Control("set driver-version 12070");
  auto target = StartTarget();
  EXPECT_EQ(target->Do("version"), "0 12070");
  EXPECT_EQ(Call("lock", *target, " 0"), Code(cuda::kNotSupported));
  EXPECT_EQ(caller_->Do("address-of cuCheckpointProcessLock 12080"), Code(cuda::kNotFound) + " 0");
  std::string output;
  const auto state = [&] {
    EXPECT_EQ(RunProgram({"cuda-checkpoint", "--get-state", "--pid", target->id()}, &output), 0);
    return output;
  };
  EXPECT_EQ(state(), "running");
  EXPECT_EQ(RunProgram({"cuda-checkpoint", "--toggle", "--pid", target->id()}, &output), 0);
  EXPECT_EQ(state(), "checkpointed");
  EXPECT_EQ(RunProgram({"cuda-checkpoint", "--action", "restore", "--pid", target->id(), "--device-map",
                        std::string(kGpu0) + "=" + kGpu1},
                       &output),
            1);
  EXPECT_EQ(RunProgram({"cuda-checkpoint", "--action", "restore", "--pid", target->id()}, &output), 0);
  EXPECT_EQ(state(), "locked");
  EXPECT_EQ(RunProgram({"cuda-checkpoint", "--action", "unlock", "--pid", target->id()}, &output), 0);
  EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
  Control("set driver-version 12040");
  EXPECT_EQ(RunProgram({"cuda-checkpoint", "--action", "lock", "--pid", target->id()}, &output), 1);
  EXPECT_EQ(RunProgram({"cuda-checkpoint", "--get-restore-tid", "--pid", std::to_string(getpid())}, &output),
            1);
}

TEST_F(GpuSimTest, FunctionsByName) {
  EXPECT_EQ(caller_->Do("address-of cuCheckpointProcessLock 12080"), "0 1");
  EXPECT_EQ(caller_->Do("address-of cuCheckpointProcessLock 12070"), Code(cuda::kNotFound) + " 0");
  EXPECT_EQ(caller_->Do("address-of cuMemAlloc 11030"), "0 1");
  EXPECT_EQ(caller_->Do("address-of cuNoSuchThing 13000"), Code(cuda::kNotFound) + " 0");
}

TEST_F(GpuSimTest, UnifiedMemoryIsCheckpointedOnlyWhereTheDriverCan) {
  auto target = StartTarget();
  EXPECT_THAT(target->Do("managed 8192"), StartsWith("0 "));
  EXPECT_EQ(Call("lock", *target, " 0"), "0");
  EXPECT_EQ(Call("checkpoint", *target), Code(cuda::kNotSupported));
  EXPECT_EQ(Call("unlock", *target), "0");
  EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
  target->Kill();
  Control("set managed-can-be-checkpointed 1");
  auto other = StartTarget();
  EXPECT_THAT(other->Do("managed 8192"), StartsWith("0 "));
  Checkpoint(*other);
  Resume(*other);
}

TEST_F(GpuSimTest, SharedMemoryIsNotCheckpointed) {
  auto target = StartTarget();
  auto other = Start();
  EXPECT_EQ(other->Do("init"), "0");
  EXPECT_EQ(other->Do("context 0"), "0");
  const std::string answer = target->Do("share 0");
  ASSERT_THAT(answer, StartsWith("0 "));
  EXPECT_EQ(other->Do("open-shared " + answer.substr(2) + " " + std::to_string(kBytes)), "0");
  EXPECT_EQ(other->Do("sum 0"), "0 " + std::to_string(sum_));
  for (const Child* process : {target.get(), other.get()}) {
    EXPECT_EQ(Call("lock", *process, " 0"), "0");
    EXPECT_EQ(Call("checkpoint", *process), Code(cuda::kNotSupported));
    EXPECT_EQ(Call("unlock", *process), "0");
  }
}

TEST_F(GpuSimTest, DeathOfTheTargetInEachCallFreesAll) {
  for (const std::string call : {"lock", "checkpoint", "restore", "unlock", "state"}) {
    SCOPED_TRACE(call);
    auto target = StartTarget();
    if (call != "lock" && call != "state") {
      EXPECT_EQ(Call("lock", *target, " 0"), "0");
    }
    if (call == "restore") {
      EXPECT_EQ(Call("checkpoint", *target), "0");
    }
    Control("inject " + call + " --nth 1 --kill-target");
    EXPECT_THAT(Call(call, *target, call == "lock" ? " 0" : ""), StartsWith(Code(cuda::kOperatingSystem)));
    EXPECT_EQ(target->Wait(), SIGKILL);
    ExpectUsed({0, 0, 0, 0});
  }
}

TEST_F(GpuSimTest, DeathOfTheCallerLeavesTheTargetInAKnownState) {
  using State = cuda::ProcessState;
  auto target = StartTarget();
  const auto kill_caller_in = [&](const std::string& call, const std::string& when) {
    auto victim = Start();
    EXPECT_EQ(victim->Do("init"), "0");
    Control("inject " + call + " --nth 1 --kill-caller --when " + when);
    victim->Send(call + " " + target->id() + (call == "lock" ? " 0" : ""));
    EXPECT_EQ(victim->Wait(), SIGKILL);
  };
  kill_caller_in("lock", "before");
  ExpectState(*target, State::kRunning);
  kill_caller_in("lock", "during");
  ExpectState(*target, State::kLocked);
  kill_caller_in("checkpoint", "before");
  ExpectState(*target, State::kLocked);
  kill_caller_in("checkpoint", "during");
  ExpectState(*target, State::kCheckpointed);
  kill_caller_in("restore", "after");
  ExpectState(*target, State::kLocked);
  kill_caller_in("unlock", "after");
  ExpectState(*target, State::kRunning);
  EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
  EXPECT_THAT(Control("calls"), HasSubstr("\"call\": \"unlock\""));
}

TEST_F(GpuSimTest, AHangLastsAsLongAsItsCaller) {
  auto target = StartTarget();
  EXPECT_EQ(Call("lock", *target, " 0"), "0");
  auto victim = Start();
  EXPECT_EQ(victim->Do("init"), "0");
  Control("inject checkpoint --nth 1 --hang");
  victim->Send("checkpoint " + target->id());
  caller_->Send("state " + target->id());
  const std::string begun = "\"call\": \"checkpoint\", \"pid\": " + target->id() +
                            ", \"caller\": " + victim->id() + ", \"result\": null";
  while (Control("calls").find(begun) == std::string::npos) usleep(10'000);
  EXPECT_FALSE(victim->Answered(100));
  victim->Kill();
  EXPECT_EQ(caller_->Read(), "0 1");  // what was half done is undone
  EXPECT_EQ(Call("unlock", *target), "0");
  EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
}

TEST_F(GpuSimTest, InjectedFailures) {
  auto target = StartTarget();
  Control("inject lock --pid " + target->id() + " --nth 2 --fail 600");
  EXPECT_EQ(Call("lock", *target, " 0"), "0");
  EXPECT_EQ(Call("unlock", *target), "0");
  EXPECT_EQ(Call("lock", *target, " 0"), "600");
  ExpectState(*target, cuda::ProcessState::kRunning);
  EXPECT_EQ(Call("lock", *target, " 0"), "0");
  Control("inject checkpoint --fail 2 --when during");
  EXPECT_EQ(Call("checkpoint", *target), "2");
  EXPECT_EQ(Call("checkpoint", *target), "2");
  Control("clear");
  Control("inject checkpoint --nth 1 --delay-ms 20");
  EXPECT_EQ(Call("checkpoint", *target), "0");
  Control("inject restore --nth 1 --fail 304 --when during");
  EXPECT_EQ(Call("restore", *target), "304");
  ExpectUsed({0, 0, 0, 0});
  Resume(*target);
  EXPECT_EQ(target->Do("sum 0"), "0 " + std::to_string(sum_));
  Control("inject memalloc --fail 2");
  EXPECT_THAT(target->Do("alloc 4096"), StartsWith("2"));
  Control("inject init --fail 999");
  EXPECT_EQ(Start()->Do("init"), "999");
}

TEST_F(GpuSimTest, SuccessThatIsNone) {
  auto target = StartTarget();
  Control("inject checkpoint --nth 1 --no-effect");
  EXPECT_EQ(Call("lock", *target, " 0"), "0");
  EXPECT_EQ(Call("checkpoint", *target), "0");
  ExpectState(*target, cuda::ProcessState::kLocked);
  Control("inject checkpoint --nth 1 --wrong-success");
  EXPECT_EQ(Call("checkpoint", *target), "0");
  ExpectState(*target, cuda::ProcessState::kCheckpointed);
  ExpectUsed({0});
  Resume(*target);
  EXPECT_EQ(target->Do("sum 0"), "0 0");  // its contents are lost
  target->Kill();
  auto other = StartTarget();
  Checkpoint(*other);
  Control("inject restore --nth 1 --wrong-success");
  Resume(*other);
  ExpectUsed({0});
  EXPECT_EQ(other->Do("step 0 1 1"), "0");
  EXPECT_EQ(other->Do("sync"), Code(cuda::kIllegalAddress));
}

TEST_F(GpuSimTest, ManagementLibrarySeesWhatTheServerCounts) {
  auto target = StartTarget();
  const std::string use = std::to_string(kContextBytes + kBytes);
  const std::string answer = caller_->Do("nvml");
  EXPECT_THAT(answer, StartsWith(std::string("0 ") + kGpu0 + " SimA " + std::to_string(kGpuBytes) + " " +
                                 use + " " + target->id() + " " + use + " " + kGpu1));
  EXPECT_THAT(answer, Not(HasSubstr(" " + caller_->id() + " ")));
  Checkpoint(*target);
  EXPECT_THAT(caller_->Do("nvml"), Not(HasSubstr(" " + target->id() + " ")));
}

TEST_F(GpuSimTest, ManagementLibraryKnowsNoContainers) {
  auto target = StartTarget();
  Control("set pids-from-outside 1");
  EXPECT_THAT(caller_->Do("nvml"),
              HasSubstr(" " + std::to_string(4'000'000 + std::stoi(target->id())) + " "));
  EXPECT_THAT(caller_->Do("nvml"), Not(HasSubstr(" " + target->id() + " ")));
}

TEST_F(GpuSimTest, SynchronizeDoesNotWaitAndCrashesWhileTheMemoryIsOut) {
  auto target = StartTarget();
  EXPECT_EQ(Call("lock", *target, " 0"), "0");
  EXPECT_EQ(target->Do("sync"), "0");
  EXPECT_EQ(Call("checkpoint", *target), "0");
  target->Send("sync");
  EXPECT_EQ(target->Wait(), SIGSEGV);
  ExpectUsed({0, 0, 0, 0});

  Control("set sync-crashes 0");
  auto other = StartTarget();
  Checkpoint(*other);
  other->Send("sync");
  EXPECT_FALSE(other->Answered(100));
  Resume(*other);
  EXPECT_EQ(other->Read(), "0");
}

TEST_F(GpuSimTest, VisibleDevices) {
  setenv("CUDA_VISIBLE_DEVICES", (std::string("3,") + kGpu1).c_str(), 1);
  auto process = Start();
  EXPECT_EQ(process->Do("init"), "0");
  EXPECT_EQ(process->Do("device 0"), std::string("0 ") + kOtherModel + " SimB");
  EXPECT_EQ(process->Do("device 1"), std::string("0 ") + kGpu1 + " SimA");
  EXPECT_THAT(process->Do("device 2"), StartsWith(Code(cuda::kInvalidDevice)));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(GpuSimTest, WithoutAServerThereIsNoDevice) {
  server_.reset();
  EXPECT_EQ(Start()->Do("init"), Code(cuda::kNoDevice));
}

}  // namespace
}  // namespace rekindle::gpu_sim
