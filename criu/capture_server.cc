#include "criu/capture_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/unix_socket.h"
#include "criu/images.pb.h"

namespace rekindle::criu {
namespace {

constexpr absl::string_view kSocketName = "streamer-capture.sock";
// CRIU's names are short ("pagemap-shmem-4294967295.img"); a longer request comes from something else.
constexpr uint32_t kMaxRequestBytes = 4096;
constexpr size_t kMaxFileNameBytes = 255;
// CRIU holds a pipe open per image file in the making; far more than that many at once means a runaway peer.
constexpr size_t kMaxThreads = 2048;

bool IsBareFileName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxFileNameBytes && name != "." && name != ".." &&
         name.find('/') == absl::string_view::npos && name.find('\0') == absl::string_view::npos;
}

// Drains files on threads that are reused. A file never waits for another one to end, because CRIU may need
// both drained to go on: as many threads exist as files were ever open at once.
class DrainPool {
 public:
  explicit DrainPool(ImageFileConsumer* consumer) : consumer_(consumer) {}
  ~DrainPool() { Finish().IgnoreError(); }

  absl::Status Start(std::string file_name, UniqueFd pipe) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (queue_.size() >= idle_) {
      if (threads_.size() >= kMaxThreads) {
        return absl::ResourceExhaustedError(absl::StrCat("receiving image file ", file_name, ": ",
                                                         kMaxThreads, " image files are open already"));
      }
      try {
        threads_.emplace_back([this] { Work(); });
      } catch (const std::system_error& error) {
        return absl::ResourceExhaustedError(
            absl::StrCat("receiving image file ", file_name, ": starting a thread for it: ", error.what()));
      }
      ++idle_;
    }
    queue_.push_back({std::move(file_name), std::move(pipe)});
    return absl::OkStatus();
  }

  // Waits until every file is drained; then the first error of the consumer, if any.
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<std::thread> threads;
    {
      absl::MutexLock lock(&mutex_);
      finishing_ = true;
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&mutex_);
    return first_error_;
  }

  // Readable once a consumer has failed.
  int failure_fd() const { return failure_event_.get(); }

 private:
  struct File {
    std::string name;
    UniqueFd pipe;
  };

  bool HasWorkOrFinishing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() || finishing_;
  }

  void Work() ABSL_LOCKS_EXCLUDED(mutex_) {
    for (;;) {
      File file;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &DrainPool::HasWorkOrFinishing));
        if (queue_.empty()) return;
        file = std::move(queue_.front());
        queue_.pop_front();
        --idle_;
      }
      absl::Status status = consumer_->Drain(file.name, std::move(file.pipe));
      absl::MutexLock lock(&mutex_);
      ++idle_;
      if (!status.ok() && first_error_.ok()) {
        first_error_ = Annotate(status, absl::StrCat("receiving image file ", file.name));
        ::eventfd_write(failure_event_.get(), 1);
      }
    }
  }

  ImageFileConsumer* const consumer_;
  const UniqueFd failure_event_{::eventfd(0, EFD_CLOEXEC)};
  absl::Mutex mutex_;
  std::deque<File> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;  // threads not in Drain; never fewer than queued files
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

// One image file as announced.
struct Announcement {
  std::string file_name;
  UniqueFd pipe;
};

class CaptureServerImpl : public CaptureServer {
 public:
  CaptureServerImpl(std::string socket_path, UniqueFd listener, UniqueFd cancel_event,
                    ImageFileConsumer* consumer)
      : socket_path_(std::move(socket_path)),
        listener_(std::move(listener)),
        cancel_event_(std::move(cancel_event)),
        consumer_(consumer) {}

  ~CaptureServerImpl() override { ::unlink(socket_path_.c_str()); }

  absl::StatusOr<std::vector<std::string>> Serve(int criu_pidfd) override {
    std::vector<std::string> names;
    DrainPool pool(consumer_);
    if (pool.failure_fd() < 0)
      return ErrnoStatus(EMFILE, "receiving images from CRIU: making an event descriptor");
    absl::Status status;
    {
      absl::StatusOr<UniqueFd> connection = Accept(criu_pidfd);
      status = connection.status();
      if (connection.ok() && connection->valid()) {
        status = ReceiveAll(connection->get(), &pool, &names);
      }
      // The connection closes here, before the pool is waited for: CRIU, if it is still there, sees a broken
      // connection at its next file, gives up and closes the pipes that the consumers are reading.
    }
    // Nor may a CRIU that comes late, after Cancel, wait for somebody to take its connection: the job stands
    // still.
    listener_.Reset();
    absl::Status drained = pool.Finish();
    if (cancelled_.load()) return absl::CancelledError("receiving images from CRIU: cancelled");
    if (!drained.ok()) return drained;
    if (!status.ok()) return status;
    return names;
  }

  void Cancel() override {
    cancelled_.store(true);
    ::eventfd_write(cancel_event_.get(), 1);
  }

 private:
  // Waits for readiness of `fd`. False: cancelled, or `also` (-1: none) is readable and `fd` is not.
  absl::StatusOr<bool> WaitReadable(int fd, int also) {
    for (;;) {
      pollfd entries[3] = {{cancel_event_.get(), POLLIN, 0}, {fd, POLLIN, 0}, {also, POLLIN, 0}};
      if (::poll(entries, 3, -1) < 0) {
        if (errno == EINTR) continue;
        return ErrnoStatus(errno, "receiving images from CRIU: poll");
      }
      if (entries[0].revents != 0) return false;
      if (entries[1].revents != 0) return true;
      if (entries[2].revents != 0) return false;
    }
  }

  // The connection; none when CRIU ended before it connected or on Cancel.
  absl::StatusOr<UniqueFd> Accept(int criu_pidfd) {
    for (;;) {
      RK_ASSIGN_OR_RETURN(bool ready, WaitReadable(listener_.get(), criu_pidfd));
      if (!ready) return UniqueFd();
      UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (connection.valid()) return connection;
      if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) {
        return ErrnoStatus(errno, absl::StrCat("accepting CRIU's connection on ", socket_path_));
      }
    }
  }

  absl::Status ReceiveAll(int connection, DrainPool* pool, std::vector<std::string>* names) {
    for (;;) {
      RK_ASSIGN_OR_RETURN(std::optional<Announcement> next, ReceiveOne(connection, pool->failure_fd()));
      if (!next.has_value()) return absl::OkStatus();
      names->push_back(next->file_name);
      consumer_->Announced(next->file_name);
      RK_RETURN_IF_ERROR(pool->Start(std::move(next->file_name), std::move(next->pipe)));
    }
  }

  // Nothing at the end of the work, on Cancel and when a consumer has failed.
  absl::StatusOr<std::optional<Announcement>> ReceiveOne(int connection, int failure_fd) {
    uint32_t length = 0;
    RK_ASSIGN_OR_RETURN(size_t got, Receive(connection, failure_fd, &length, sizeof length));
    if (got == 0) return std::nullopt;
    if (got < sizeof length) return Truncated();
    if (length == 0 || length > kMaxRequestBytes) {
      return absl::DataLossError(absl::StrCat("receiving images from CRIU: a request of ", length,
                                              " bytes; the peer does not speak CRIU's streaming protocol"));
    }
    std::string body(length, '\0');
    RK_ASSIGN_OR_RETURN(got, Receive(connection, failure_fd, body.data(), body.size()));
    if (got < body.size()) return Truncated();
    pb::StreamRequest request;
    if (!request.ParseFromString(body)) {
      return absl::DataLossError("receiving images from CRIU: a request that is no protocol message");
    }
    if (!IsBareFileName(request.file_name())) {
      return absl::DataLossError(
          "receiving images from CRIU: a request whose file name is empty, too long or a path");
    }
    Announcement announcement;
    announcement.file_name = request.file_name();
    RK_ASSIGN_OR_RETURN(announcement.pipe, ReceivePipe(connection, failure_fd, announcement.file_name));
    if (!announcement.pipe.valid()) return std::nullopt;
    return announcement;
  }

  // Exactly `size` bytes and never one more, since a descriptor rides on the byte that follows a request.
  // Fewer at end-of-file; 0 also on Cancel and when a consumer has failed.
  absl::StatusOr<size_t> Receive(int connection, int failure_fd, void* data, size_t size) {
    size_t done = 0;
    while (done < size) {
      RK_ASSIGN_OR_RETURN(bool ready, WaitReadable(connection, failure_fd));
      if (!ready) return 0;
      ssize_t n = ::recv(connection, static_cast<char*>(data) + done, size - done, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) break;
      if (n < 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        return ErrnoStatus(errno, "receiving images from CRIU");
      }
      done += static_cast<size_t>(n);
    }
    return done;
  }

  // The pipe that follows a request; invalid on Cancel and when a consumer has failed.
  absl::StatusOr<UniqueFd> ReceivePipe(int connection, int failure_fd, absl::string_view file_name) {
    for (;;) {
      RK_ASSIGN_OR_RETURN(bool ready, WaitReadable(connection, failure_fd));
      if (!ready) return UniqueFd();
      char byte;
      iovec data{&byte, 1};
      // Room for two, so that a peer that sends several is found out and none of them leaks.
      alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      ssize_t n = ::recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n == 0 || (n < 0 && errno == ECONNRESET)) return Truncated();
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("receiving the pipe of image file ", file_name));
      std::vector<UniqueFd> received;
      for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
           header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
          int fd;
          std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
          received.emplace_back(fd);
        }
      }
      if (received.size() != 1 || (message.msg_flags & MSG_CTRUNC) != 0) {
        // The kernel drops what does not fit in our descriptor table and only sets the flag.
        return absl::DataLossError(
            absl::StrCat("receiving the pipe of image file ", file_name, ": ", received.size(),
                         " descriptors came with it",
                         (message.msg_flags & MSG_CTRUNC) != 0
                             ? " and some were lost (too many open files? raise ulimit -n)"
                             : ""));
      }
      return std::move(received.front());
    }
  }

  static absl::Status Truncated() {
    return absl::DataLossError(
        "receiving images from CRIU: the connection broke off in the middle of a request");
  }

  const std::string socket_path_;
  UniqueFd listener_;  // until Serve has ended
  const UniqueFd cancel_event_;
  ImageFileConsumer* const consumer_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace

absl::StatusOr<std::unique_ptr<CaptureServer>> CaptureServer::Listen(const std::string& images_directory,
                                                                     ImageFileConsumer* consumer) {
  std::string path = absl::StrCat(images_directory, "/", kSocketName);
  RK_ASSIGN_OR_RETURN(UniqueFd listener, ListenAt(path, SOCK_NONBLOCK));
  UniqueFd cancel_event(::eventfd(0, EFD_CLOEXEC));
  if (!cancel_event.valid()) {
    absl::Status status = ErrnoStatus(errno, absl::StrCat("listening on ", path));
    ::unlink(path.c_str());
    return status;
  }
  return std::make_unique<CaptureServerImpl>(std::move(path), std::move(listener), std::move(cancel_event),
                                             consumer);
}

}  // namespace rekindle::criu
