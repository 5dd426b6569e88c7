#include "daemon/unix_listener.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/test_child.h"

namespace rekindle::daemon {
namespace {

TEST(UnixListenerTest, AChildThatIsJustBeingMadeDoesNotKeepItsPlace) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-listener-").value();
  const std::string path = folder.path() + "/s";
  const auto start = [&path] { return UnixListener::Start(path, 0600, "", [](UniqueFd) {}); };
  absl::StatusOr<std::unique_ptr<UnixListener>> first = start();
  ASSERT_TRUE(first.ok()) << first.status();
  // As one that has not begun its program has what is open here. (The listener's thread does nothing that a
  // child needs, which only waits.)
  const TestChild child;
  ASSERT_TRUE(child.prepared());
  EXPECT_TRUE(absl::IsAlreadyExists(start().status()));
  first->reset();
  const absl::StatusOr<std::unique_ptr<UnixListener>> second = start();
  EXPECT_TRUE(second.ok()) << second.status();
}

}  // namespace
}  // namespace rekindle::daemon
