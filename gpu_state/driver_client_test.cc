// With helpers of the test's own: this program, started as one.
#include "gpu_state/driver_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "gpu_state/helper_protocol.h"

namespace rekindle::gpu {
namespace {

constexpr char kHelperVariable[] =
    "REKINDLE_TEST_GPU_HELPER";  // a file: what is there says that one was killed
constexpr pid_t kManyUsers = 5000;
constexpr pid_t kBusy = 1;         // its checkpoint ends when somebody says so
constexpr pid_t kPair[] = {2, 3};  // the state of either is told when that of both was asked for
constexpr char kSaysSo[] = ".may-end", kIsAtIt[] = ".at-it", kSawTheEnd[] = ".put-back";
constexpr absl::Duration kHangs = absl::Milliseconds(200), kAnswerMayTake = absl::Seconds(30);

// The first one hangs in a checkpoint. Those after it tell a state that is another call's late answer, and
// then what is. One that sees the end of the stream leaves a file that says so.
[[noreturn]] void BeHelper(const std::string& file) {
  const bool is_first = ::access(file.c_str(), F_OK) != 0;
  int questions = 0;
  std::optional<uint64_t> held_back;
  std::string packet(kMaxPacketBytes, '\0');
  for (ssize_t n; (n = ::recv(kHelperSocket, packet.data(), packet.size(), 0)) > 0;) {
    const auto request = HelperRequest::Decode(absl::string_view(packet.data(), static_cast<size_t>(n)));
    if (!request.ok()) break;
    HelperAnswer answer;
    answer.id = request->id;
    if (request->what == HelperRequest::What::kHello) answer.driver_version = 13000;
    if (request->what == HelperRequest::What::kState) {
      answer.state = questions++ == 0 ? ProcessState::kRunning : ProcessState::kCheckpointed;
    }
    if (request->what == HelperRequest::What::kDevices) {
      answer.view.devices = {{"GPU-a", "NVIDIA H200", 1, 1, false}};
      for (pid_t pid = 1; pid <= kManyUsers; ++pid) answer.view.uses.push_back({pid, "GPU-a", 1});
      for (const std::string& part : answer.Packets()) {
        if (::send(kHelperSocket, part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
      }
      continue;
    }
    if (request->what == HelperRequest::What::kThread) {
      const std::string too_long(kMaxPacketBytes + 1, 'x');
      if (::send(kHelperSocket, too_long.data(), too_long.size(), MSG_NOSIGNAL) < 0) break;
      continue;
    }
    if (request->what == HelperRequest::What::kAct && is_first && request->pid != kBusy) {
      (void)WriteFileAtomically(file, "");
      continue;
    }
    if (request->what == HelperRequest::What::kAct && request->pid == kBusy) {
      (void)WriteFileAtomically(file + kIsAtIt, "");
      while (!PathExists(file + kSaysSo)) absl::SleepFor(absl::Milliseconds(1));
    }
    const bool is_of_pair = absl::c_linear_search(kPair, request->pid);
    if (request->what == HelperRequest::What::kState && is_of_pair) {
      answer.state = ProcessState::kCheckpointed;
      if (!held_back) {
        held_back = answer.id;
        continue;
      }
      HelperAnswer other = answer;
      other.id = *std::exchange(held_back, std::nullopt);
      const std::string text = other.Encode();
      (void)!::send(kHelperSocket, text.data(), text.size(), MSG_NOSIGNAL);
    }
    const std::string text = answer.Encode();
    if (::send(kHelperSocket, text.data(), text.size(), MSG_NOSIGNAL) < 0) break;
  }
  (void)WriteFileAtomically(file + kSawTheEnd, "");
  ::_exit(0);
}

const bool is_helper = [] {
  if (const char* file = std::getenv(kHelperVariable)) BeHelper(file);
  return false;
}();

TEST(DriverClientTest, ALateAnswerIsNotTheStateAfterAHelperWasKilled) {
  ASSERT_FALSE(is_helper);
  const TemporaryDirectory folder = *TemporaryDirectory::Make("/tmp", "driver-client-test-");
  ASSERT_EQ(::setenv(kHelperVariable, (folder.path() + "/killed").c_str(), 1), 0);
  DriverClient client({std::filesystem::read_symlink("/proc/self/exe").string(), nullptr});
  const pid_t pid = ::getpid();
  const std::vector<absl::Status> acted = client.Act(Action::kCheckpoint, {pid}, {}, kHangs);
  EXPECT_TRUE(absl::IsUnavailable(acted[0])) << acted[0];
  const auto states = client.States({pid}, kAnswerMayTake);
  ASSERT_TRUE(states[0].ok()) << states[0].status();
  EXPECT_EQ(*states[0], ProcessState::kCheckpointed);
  ::unsetenv(kHelperVariable);
}

TEST(DriverClientTest, AHelperThatHangsInOneCallIsKilledWhenItsOthersHaveEnded) {
  const TemporaryDirectory folder = *TemporaryDirectory::Make("/tmp", "driver-client-test-");
  const std::string file = folder.path() + "/killed";
  ASSERT_EQ(::setenv(kHelperVariable, file.c_str(), 1), 0);
  DriverClient client({std::filesystem::read_symlink("/proc/self/exe").string(), nullptr});
  absl::Status done;
  std::thread busy([&] { done = client.Act(Action::kCheckpoint, {kBusy}, {}, kAnswerMayTake)[0]; });
  while (!PathExists(file + kIsAtIt)) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsUnavailable(client.Act(Action::kCheckpoint, {::getpid()}, {}, kHangs)[0]));
  EXPECT_TRUE(WriteFileAtomically(file + kSaysSo, "").ok());
  busy.join();
  EXPECT_TRUE(done.ok()) << done;
  // It would take us for dead, and put back what we move.
  EXPECT_FALSE(PathExists(file + kSawTheEnd));
  ::unsetenv(kHelperVariable);
}

TEST(DriverClientTest, OfSeveralThatMayBeOutOfStepAllAreAskedAtOnce) {
  const TemporaryDirectory folder = *TemporaryDirectory::Make("/tmp", "driver-client-test-");
  ASSERT_EQ(::setenv(kHelperVariable, (folder.path() + "/killed").c_str(), 1), 0);
  DriverClient client({std::filesystem::read_symlink("/proc/self/exe").string(), nullptr});
  for (const absl::Status& acted : client.Act(Action::kCheckpoint, kPair, {}, kHangs))
    EXPECT_TRUE(absl::IsUnavailable(acted)) << acted;
  for (const auto& state : client.States(kPair, kAnswerMayTake)) EXPECT_TRUE(state.ok()) << state.status();
  ::unsetenv(kHelperVariable);
}

TEST(DriverClientTest, WithoutItsLockAHelperAnswersQuestionsAlone) {
  const TemporaryDirectory folder = *TemporaryDirectory::Make("/tmp", "driver-client-test-");
  ASSERT_TRUE(WriteFileAtomically(folder.path() + "/killed", "").ok());  // nothing hangs
  ASSERT_EQ(::setenv(kHelperVariable, (folder.path() + "/killed").c_str(), 1), 0);
  bool locks = false;
  DriverClient client(
      {std::filesystem::read_symlink("/proc/self/exe").string(), [&]() -> absl::StatusOr<int> {
         if (locks) return STDIN_FILENO;
         return absl::PermissionDeniedError("read-only");
       }});
  EXPECT_TRUE(client.Devices().ok());
  EXPECT_TRUE(client.States({::getpid()}, kAnswerMayTake)[0].ok());
  EXPECT_TRUE(absl::IsPermissionDenied(client.Act(Action::kCheckpoint, {::getpid()}, {}, kAnswerMayTake)[0]));
  locks = true;
  EXPECT_TRUE(client.Act(Action::kCheckpoint, {::getpid()}, {}, kAnswerMayTake)[0].ok());
  ::unsetenv(kHelperVariable);
}

TEST(DriverClientTest, AnAnswerOfManyPacketsIsWholeAndOneThatMakesNoSenseIsAnError) {
  const TemporaryDirectory folder = *TemporaryDirectory::Make("/tmp", "driver-client-test-");
  ASSERT_EQ(::setenv(kHelperVariable, (folder.path() + "/killed").c_str(), 1), 0);
  DriverClient client({std::filesystem::read_symlink("/proc/self/exe").string(), nullptr});
  for (int times = 0; times < 2; ++times) {
    const auto view = client.Devices();
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->devices.size(), 1u);
    ASSERT_EQ(view->uses.size(), static_cast<size_t>(kManyUsers));
    for (pid_t pid = 1; pid <= kManyUsers; ++pid)
      EXPECT_EQ(view->uses[static_cast<size_t>(pid - 1)].pid, pid);
    const auto threads = client.RestoreThreads({::getpid()}, kAnswerMayTake);
    EXPECT_TRUE(absl::IsUnavailable(threads.status())) << threads.status();
    EXPECT_NE(std::string(threads.status().message()).find("bytes"), std::string::npos) << threads.status();
  }
  ::unsetenv(kHelperVariable);
}

}  // namespace
}  // namespace rekindle::gpu
