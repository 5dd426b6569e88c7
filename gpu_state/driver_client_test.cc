// With helpers of the test's own: this program, started as one.
#include "gpu_state/driver_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "gpu_state/helper_protocol.h"

namespace rekindle::gpu {
namespace {

constexpr char kHelperVariable[] =
    "REKINDLE_TEST_GPU_HELPER";  // a file: what is there says that one was killed
constexpr absl::Duration kHangs = absl::Milliseconds(200), kAnswerMayTake = absl::Seconds(30);

// The first one hangs in a checkpoint. Those after it tell a state that is another call's late answer, and
// then what is.
[[noreturn]] void BeHelper(const std::string& file) {
  const bool is_first = ::access(file.c_str(), F_OK) != 0;
  int questions = 0;
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
    if (request->what == HelperRequest::What::kAct && is_first) {
      (void)WriteFileAtomically(file, "");
      for (;;) ::pause();
    }
    const std::string text = answer.Encode();
    if (::send(kHelperSocket, text.data(), text.size(), MSG_NOSIGNAL) < 0) break;
  }
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

}  // namespace
}  // namespace rekindle::gpu
