#include "tests/gpu_sim/wire.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace rekindle::gpu_sim {
namespace {

constexpr const char* kCallNames[kCalls] = {"lock",     "checkpoint",  "restore", "unlock",
                                            "state",    "restore-tid", "init",    "context",
                                            "memalloc", "memfree",     "launch"};

bool Address(const std::string& path, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address->sun_path)) {
    errno = ENAMETOOLONG;
    return false;
  }
  std::memcpy(address->sun_path, path.data(), path.size());
  return true;
}

}  // namespace

const char* CallName(Call call) { return kCallNames[static_cast<unsigned>(call)]; }

bool CallFromName(const std::string& name, Call* call) {
  for (unsigned i = 0; i < kCalls; ++i) {
    if (name == kCallNames[i]) {
      *call = static_cast<Call>(i);
      return true;
    }
  }
  return false;
}

std::string UuidText(const gpu::cuda::Uuid& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char hex[3];
    std::snprintf(hex, sizeof(hex), "%02x", uuid.bytes[i]);
    text += hex;
  }
  return text;
}

bool UuidFromText(const std::string& text, gpu::cuda::Uuid* uuid) {
  std::string digits = text.compare(0, 4, "GPU-") == 0 ? text.substr(4) : text;
  std::erase(digits, '-');
  if (digits.size() != 32 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
    return false;
  }
  for (int i = 0; i < 16; ++i) {
    uuid->bytes[i] = static_cast<unsigned char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  return true;
}

int ListenOn(const std::string& path) {
  sockaddr_un address;
  if (!Address(path, &address)) return -1;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || listen(fd, 256) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

int ConnectTo(const std::string& path) {
  sockaddr_un address;
  if (!Address(path, &address)) return -1;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

bool SendAll(int socket, const void* data, size_t bytes, int descriptor) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    iovec part{const_cast<char*>(next), bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    }
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    descriptor = -1;
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int socket, void* data, size_t bytes, int* descriptor) {
  if (descriptor != nullptr) *descriptor = -1;
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    iovec part{next, bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    if (descriptor != nullptr) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
    }
    const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    if (descriptor != nullptr) {
      const cmsghdr* header = CMSG_FIRSTHDR(&message);
      if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
        if (*descriptor >= 0) close(*descriptor);
        std::memcpy(descriptor, CMSG_DATA(header), sizeof(int));
      }
    }
    next += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool Ask(int socket, const Request& request, const std::string& text, Reply* reply, std::string* reply_text,
         int* descriptor) {
  Request sent = request;
  sent.text_bytes = static_cast<uint32_t>(text.size());
  std::string ignored;
  if (reply_text == nullptr) reply_text = &ignored;
  if (!SendAll(socket, &sent, sizeof(sent)) || !SendAll(socket, text.data(), text.size()) ||
      !ReceiveAll(socket, reply, sizeof(*reply), descriptor)) {
    return false;
  }
  reply_text->resize(reply->text_bytes);
  return ReceiveAll(socket, reply_text->data(), reply_text->size());
}

bool AskOnce(const Request& request, const std::string& text, Reply* reply, std::string* reply_text) {
  const char* path = std::getenv(kServerVariable);
  if (path == nullptr) return false;
  const int socket = ConnectTo(path);
  if (socket < 0) return false;
  const bool answered = Ask(socket, request, text, reply, reply_text, nullptr);
  close(socket);
  return answered;
}

}  // namespace rekindle::gpu_sim
