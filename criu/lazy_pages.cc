#include "criu/lazy_pages.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::criu {
namespace {

constexpr int32_t kFinishedWord = 0x52535446;

}  // namespace

absl::StatusOr<bool> LazyPagesConnection::ReadWord(bool* closed) {
  while (word_bytes_ < sizeof word_) {
    // Never more than the word: a descriptor rides on the byte after it.
    ssize_t n =
        ::read(connection_.get(), reinterpret_cast<char*>(&word_) + word_bytes_, sizeof word_ - word_bytes_);
    if (n > 0) {
      word_bytes_ += static_cast<size_t>(n);
    } else if (n == 0 || errno == ECONNRESET) {
      *closed = true;
      return false;
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "listening to CRIU's lazy restore");
    }
  }
  return true;
}

absl::StatusOr<LazyPagesConnection::Event> LazyPagesConnection::Next() {
  Event event;
  if (!awaits_descriptor_) {
    bool closed = false;
    RK_ASSIGN_OR_RETURN(bool complete, ReadWord(&closed));
    if (closed) event.what = Event::What::kClosed;
    if (!complete) return event;
    word_bytes_ = 0;
    if (word_ == kFinishedWord) {
      event.what = Event::What::kFinished;
      return event;
    }
    if (word_ < 0) {
      event.what = Event::What::kZombie;
      event.pid = -word_;
      return event;
    }
    if (word_ == 0) return absl::DataLossError("CRIU announced a task with PID 0 to the pager");
    awaits_descriptor_ = true;
  }
  char byte;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  // A message that is taken and has no room here is lost with its descriptor.
  while ((n = ::recvmsg(connection_.get(), &message, MSG_CMSG_CLOEXEC | MSG_PEEK)) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return event;
    if (errno != ECONNRESET) return ErrnoStatus(errno, "taking a userfaultfd from CRIU");
    n = 0;
    break;
  }
  if (n == 0) {
    event.what = Event::What::kClosed;
    return event;
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) return ErrnoStatus(EMFILE, "taking a userfaultfd from CRIU");
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
    return absl::DataLossError(absl::StrCat("CRIU sent no userfaultfd for task ", word_));
  }
  int fd;
  memcpy(&fd, CMSG_DATA(header), sizeof fd);
  event.userfaultfd.Reset(fd);
  while ((n = ::recv(connection_.get(), &byte, sizeof byte, 0)) < 0 && errno == EINTR) {
  }
  if (n != 1) return ErrnoStatus(n < 0 ? errno : EIO, "taking a userfaultfd from CRIU");
  awaits_descriptor_ = false;
  event.what = Event::What::kTask;
  event.pid = word_;
  return event;
}

}  // namespace rekindle::criu
