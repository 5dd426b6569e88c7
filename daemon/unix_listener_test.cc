#include "daemon/unix_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/test_child.h"
#include "base/unique_fd.h"
#include "base/unix_socket.h"

namespace rekindle::daemon {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// What has become of the entries of this name in a folder that `inotify` watches, since it was asked last.
std::vector<uint32_t> EventsOf(const UniqueFd& inotify, const std::string& name) {
  std::vector<uint32_t> events;
  alignas(inotify_event) char buffer[4096];
  ssize_t n;
  while ((n = ::read(inotify.get(), buffer, sizeof buffer)) > 0) {
    for (const char* at = buffer; at < buffer + n;) {
      const auto* event = reinterpret_cast<const inotify_event*>(at);
      if (event->len > 0 && name == event->name) events.push_back(event->mask);
      at += sizeof *event + event->len;
    }
  }
  return events;
}

TEST(UnixListenerTest, ItIsSeenOnceItListens) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-listener-").value();
  const std::string path = folder.path() + "/s";
  const auto start = [&path] { return UnixListener::Start(path, 0600, "", [](UniqueFd) {}); };
  const UniqueFd inotify(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  ASSERT_GE(::inotify_add_watch(inotify.get(), folder.path().c_str(),
                                IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM | IN_ATTRIB),
            0);
  absl::StatusOr<std::unique_ptr<UnixListener>> first = start();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(EventsOf(inotify, "s"), ElementsAre(IN_MOVED_TO));
  EXPECT_FALSE(PathExists(path + ".starting"));
  first->reset();
  EXPECT_THAT(EventsOf(inotify, "s"), ElementsAre(IN_DELETE));

  // In the place of a killed daemon's, one of whose starts was killed half way, too: it is never away.
  for (const char* left : {"s", "s.starting"}) ASSERT_TRUE(ListenAt(folder.path() + "/" + left).ok());
  ASSERT_THAT(EventsOf(inotify, "s"), ElementsAre(IN_CREATE));
  const absl::StatusOr<std::unique_ptr<UnixListener>> second = start();
  ASSERT_TRUE(second.ok()) << second.status();
  // (What is replaced has one link less.)
  EXPECT_THAT(EventsOf(inotify, "s"), testing::Not(testing::Contains(IN_DELETE)));
  EXPECT_TRUE(ConnectTo(path).ok());
  // Another one changes nothing of it.
  EXPECT_TRUE(absl::IsAlreadyExists(start().status()));
  EXPECT_THAT(EventsOf(inotify, "s"), IsEmpty());
  EXPECT_TRUE(ConnectTo(path).ok());
}

TEST(UnixListenerTest, TheLongestName) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk-listener-").value();
  const size_t longest = sizeof sockaddr_un{}.sun_path - 1;
  const std::string path = folder.path() + "/" + std::string(longest - folder.path().size() - 1, 's');
  for (int i = 0; i < 2; ++i) {
    const auto listener = UnixListener::Start(path, 0600, "", [](UniqueFd) {});
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(ConnectTo(path).ok());
    struct stat info;
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
}

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
