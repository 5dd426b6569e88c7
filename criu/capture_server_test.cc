#include "criu/capture_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/subprocess.h"
#include "criu/images.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The other end of the protocol, as CRIU speaks it.
class CriuSide {
 public:
  explicit CriuSide(const std::string& folder) {
    socket_.Reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, absl::StrCat(folder, "/streamer-capture.sock").c_str());
    connected_ = ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }

  bool connected() const { return connected_; }
  bool SendRaw(absl::string_view bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool SendRequest(const std::string& name) {
    pb::StreamRequest request;
    request.set_file_name(name);
    std::string body = request.SerializeAsString();
    auto length = static_cast<uint32_t>(body.size());
    return SendRaw(absl::StrCat(std::string(reinterpret_cast<char*>(&length), sizeof length), body));
  }
  bool SendDescriptors(const std::vector<int>& fds) {
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
    }
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) == 1;
  }
  // Announces a file; the write end of its pipe.
  UniqueFd OpenImage(const std::string& name) {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    UniqueFd read_end(fds[0]), write_end(fds[1]);
    EXPECT_TRUE(SendRequest(name));
    EXPECT_TRUE(SendDescriptors({read_end.get()}));
    return write_end;
  }
  void Close() { socket_.Reset(); }
  // True when the server has hung up.
  bool AwaitHangup() {
    pollfd entry{socket_.get(), POLLRDHUP, 0};
    return ::poll(&entry, 1, 20000) == 1;
  }

 private:
  UniqueFd socket_;
  bool connected_ = false;
};

class RecordingConsumer : public ImageFileConsumer {
 public:
  void Announced(const std::string& file_name) override { announced.push_back(file_name); }

  absl::Status Drain(const std::string& file_name, UniqueFd pipe) override {
    {
      absl::MutexLock lock(&mutex);
      ++started;
    }
    if (file_name == failing_name) return absl::ResourceExhaustedError("no room");
    std::string content;
    char buffer[4096];
    ssize_t n;
    while ((n = ::read(pipe.get(), buffer, sizeof buffer)) > 0)
      content.append(buffer, static_cast<size_t>(n));
    absl::MutexLock lock(&mutex);
    files[file_name] = content;
    threads.insert(std::this_thread::get_id());
    return absl::OkStatus();
  }

  void AwaitStarted(int count) {
    absl::MutexLock lock(&mutex);
    auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return started >= count; };
    mutex.Await(absl::Condition(&reached));
  }

  std::string failing_name;
  std::vector<std::string> announced;
  absl::Mutex mutex;
  int started = 0;
  std::map<std::string, std::string> files;
  std::set<std::thread::id> threads;
};

class CaptureServerTest : public ::testing::Test {
 protected:
  CaptureServerTest() : folder_(*TemporaryDirectory::Make("/tmp", "rk-capture-")) {
    server_ = *CaptureServer::Listen(folder_.path(), &consumer_);
  }

  // Runs `criu` against a serving server; what Serve returned.
  absl::StatusOr<std::vector<std::string>> Serve(const std::function<void(CriuSide*)>& criu) {
    CriuSide side(folder_.path());
    EXPECT_TRUE(side.connected());
    absl::StatusOr<std::vector<std::string>> result = absl::UnknownError("not served");
    std::thread server([&] { result = server_->Serve(-1); });
    criu(&side);
    side.Close();
    server.join();
    return result;
  }

  TemporaryDirectory folder_;
  RecordingConsumer consumer_;
  std::unique_ptr<CaptureServer> server_;
};

TEST_F(CaptureServerTest, ManyFilesOpenAtOnceAreDrainedTogether) {
  constexpr int kFiles = 40;
  absl::StatusOr<std::vector<std::string>> names = Serve([&](CriuSide* criu) {
    std::vector<UniqueFd> pipes;
    for (int i = 0; i < kFiles; ++i) pipes.push_back(criu->OpenImage(absl::StrCat("pages-", i, ".img")));
    // Filled last to first, each with more than a pipe holds: a server that waits for the first would stall.
    std::string content(200000, 'x');
    for (int i = kFiles - 1; i >= 0; --i) {
      EXPECT_TRUE(WriteFully(pipes[i].get(), content.data(), content.size(), "pipe").ok());
    }
  });
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(names->size(), static_cast<size_t>(kFiles));
  EXPECT_EQ(*names, consumer_.announced);
  EXPECT_EQ((*names)[3], "pages-3.img");
  ASSERT_EQ(consumer_.files.size(), static_cast<size_t>(kFiles));
  for (const auto& [name, content] : consumer_.files) EXPECT_EQ(content.size(), 200000u) << name;
}

TEST_F(CaptureServerTest, ThreadsAreReused) {
  constexpr int kFiles = 100;
  absl::StatusOr<std::vector<std::string>> names = Serve([&](CriuSide* criu) {
    for (int i = 0; i < kFiles; ++i) {
      criu->OpenImage(absl::StrCat("core-", i, ".img")).Reset();
      absl::MutexLock lock(&consumer_.mutex);
      auto drained = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(consumer_.mutex) {
        return consumer_.files.size() > static_cast<size_t>(i);
      };
      consumer_.mutex.Await(absl::Condition(&drained));
    }
  });
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(consumer_.files.size(), static_cast<size_t>(kFiles));
  // A thread that has recorded its file may not be idle yet when the next comes, so one is too strict.
  EXPECT_LT(consumer_.threads.size(), 10u);
}

TEST_F(CaptureServerTest, EmptySessionIsEmpty) {
  absl::StatusOr<std::vector<std::string>> names = Serve([](CriuSide*) {});
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, IsEmpty());
}

TEST_F(CaptureServerTest, ReceivedPipesAreNotInherited) {
  class FlagConsumer : public RecordingConsumer {
   public:
    absl::Status Drain(const std::string& file_name, UniqueFd pipe) override {
      close_on_exec = (::fcntl(pipe.get(), F_GETFD) & FD_CLOEXEC) != 0;
      return RecordingConsumer::Drain(file_name, std::move(pipe));
    }
    bool close_on_exec = false;
  };
  FlagConsumer consumer;
  server_.reset();
  server_ = *CaptureServer::Listen(folder_.path(), &consumer);
  ASSERT_TRUE(Serve([](CriuSide* criu) { criu->OpenImage("a.img"); }).ok());
  EXPECT_TRUE(consumer.close_on_exec);
}

TEST_F(CaptureServerTest, ConsumerFailureHangsUpAndIsReturned) {
  consumer_.failing_name = "pages-1.img";
  absl::StatusOr<std::vector<std::string>> names = Serve([&](CriuSide* criu) {
    UniqueFd other = criu->OpenImage("files.img");
    UniqueFd pages = criu->OpenImage("pages-1.img");
    EXPECT_TRUE(criu->AwaitHangup());
  });
  EXPECT_EQ(names.status().code(), absl::StatusCode::kResourceExhausted) << names.status();
  EXPECT_THAT(std::string(names.status().message()), HasSubstr("pages-1.img"));
}

TEST_F(CaptureServerTest, CancelInTheMiddle) {
  absl::StatusOr<std::vector<std::string>> names = Serve([&](CriuSide* criu) {
    UniqueFd pipe = criu->OpenImage("files.img");
    consumer_.AwaitStarted(1);
    server_->Cancel();
    EXPECT_TRUE(criu->AwaitHangup());
  });
  EXPECT_EQ(names.status().code(), absl::StatusCode::kCancelled) << names.status();
}

TEST_F(CaptureServerTest, CancelBeforeAnyConnection) {
  server_->Cancel();
  EXPECT_EQ(server_->Serve(-1).status().code(), absl::StatusCode::kCancelled);
}

// It would wait for an answer for ever, with the job frozen.
TEST_F(CaptureServerTest, CriuThatComesAfterCancelIsTurnedAway) {
  CriuSide waiting(folder_.path());
  EXPECT_TRUE(waiting.connected());
  server_->Cancel();
  EXPECT_EQ(server_->Serve(-1).status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(waiting.AwaitHangup());
  CriuSide late(folder_.path());
  EXPECT_FALSE(late.connected());
}

TEST_F(CaptureServerTest, DeathBeforeConnectingEndsTheWait) {
  SubprocessOptions options;
  options.argv = {"true"};
  absl::StatusOr<Subprocess> child = Subprocess::Start(options);
  ASSERT_TRUE(child.ok());
  absl::StatusOr<std::vector<std::string>> names = server_->Serve(child->pidfd());
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, IsEmpty());
}

TEST_F(CaptureServerTest, MalformedRequestsAreRefused) {
  const std::vector<std::pair<std::string, std::function<void(CriuSide*)>>> cases = {
      {"a huge length", [](CriuSide* criu) { criu->SendRaw("\xff\xff\xff\x7f"); }},
      {"a length of none", [](CriuSide* criu) { criu->SendRaw(absl::string_view("\0\0\0\0", 4)); }},
      {"half a length", [](CriuSide* criu) { criu->SendRaw("\x05"); }},
      {"half a body", [](CriuSide* criu) { criu->SendRaw(absl::string_view("\x08\0\0\0\x0a", 5)); }},
      {"no message", [](CriuSide* criu) { criu->SendRaw(absl::string_view("\x02\0\0\0\xff\xff", 6)); }},
      {"no name", [](CriuSide* criu) { criu->SendRequest(""); }},
      {"a path", [](CriuSide* criu) { criu->SendRequest("../../etc/passwd"); }},
      {"an absolute path", [](CriuSide* criu) { criu->SendRequest("/etc/passwd"); }},
      {"two dots", [](CriuSide* criu) { criu->SendRequest(".."); }},
      {"a zero byte", [](CriuSide* criu) { criu->SendRequest(std::string("a\0b", 3)); }},
      {"a long name", [](CriuSide* criu) { criu->SendRequest(std::string(300, 'a')); }},
      {"no pipe, then the end", [](CriuSide* criu) { criu->SendRequest("a.img"); }},
      {"a byte without a pipe",
       [](CriuSide* criu) {
         criu->SendRequest("a.img");
         criu->SendDescriptors({});
       }},
      {"two descriptors",
       [](CriuSide* criu) {
         criu->SendRequest("a.img");
         criu->SendDescriptors({0, 1});
       }},
  };
  for (const auto& [what, send] : cases) {
    SCOPED_TRACE(what);
    server_.reset();
    server_ = *CaptureServer::Listen(folder_.path(), &consumer_);
    absl::StatusOr<std::vector<std::string>> names = Serve(send);
    EXPECT_EQ(names.status().code(), absl::StatusCode::kDataLoss) << names.status();
  }
  EXPECT_THAT(consumer_.files, IsEmpty());
}

TEST_F(CaptureServerTest, SocketGoesWithTheServer) {
  std::string path = folder_.path() + "/streamer-capture.sock";
  EXPECT_TRUE(PathExists(path));
  EXPECT_EQ(CaptureServer::Listen(folder_.path(), &consumer_).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(PathExists(path));
  server_.reset();
  EXPECT_FALSE(PathExists(path));
}

TEST_F(CaptureServerTest, FoldersThatCanNotHoldTheSocket) {
  EXPECT_EQ(CaptureServer::Listen("/tmp/" + std::string(120, 'x'), &consumer_).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CaptureServer::Listen("/tmp/rk-no-such-folder", &consumer_).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace rekindle::criu
