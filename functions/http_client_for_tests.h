// The client's side of HTTP for tests, byte by byte where need be.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/unique_fd.h"
#include "base/unix_socket.h"

namespace rekindle::functions {

struct HttpReply {
  int status = 0;                              // 0: the connection ended before
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// A listening socket, and where it is.
class TestAddress {
 public:
  enum Kind { kUnix, kTcp };

  explicit TestAddress(Kind kind) {
    std::string name = ::testing::TempDir() + "/http.XXXXXX";
    directory_ = ::mkdtemp(name.data()) ? name : "";
    if (kind == kUnix) {
      unix_.sun_family = AF_UNIX;
      std::string path = directory_ + "/socket";
      path.copy(unix_.sun_path, sizeof unix_.sun_path - 1);
      auto listener = ListenAt(path);
      EXPECT_TRUE(listener.ok()) << listener.status();
      if (listener.ok()) listener_ = *std::move(listener);
      return;
    }
    listener_.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    tcp_.sin_family = AF_INET;
    tcp_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof tcp_;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&tcp_), sizeof tcp_), 0);
    EXPECT_EQ(::listen(listener_.get(), 128), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&tcp_), &size), 0);
  }
  ~TestAddress() { EXPECT_TRUE(RemoveTree(directory_).ok()); }
  TestAddress(const TestAddress&) = delete;
  TestAddress& operator=(const TestAddress&) = delete;

  UniqueFd TakeListener() { return std::move(listener_); }

  UniqueFd Connect() const {
    bool local = unix_.sun_family == AF_UNIX;
    UniqueFd socket(::socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int failed = local ? ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&unix_), sizeof unix_)
                       : ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&tcp_), sizeof tcp_);
    EXPECT_EQ(failed, 0) << errno;
    // A test that would wait for ever fails.
    timeval patience{60, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (!local) {
      int one = 1;
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    return socket;
  }

 private:
  std::string directory_;
  sockaddr_un unix_{};
  sockaddr_in tcp_{};
  UniqueFd listener_;
};

class HttpClient {
 public:
  explicit HttpClient(const TestAddress& address) : socket_(address.Connect()) {}

  // False: the other end is gone.
  bool Send(absl::string_view text) {
    while (!text.empty()) {
      ssize_t sent = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // The next answer, an interim one (100) too. One to HEAD has no body, whatever length it tells.
  HttpReply Read(bool to_head = false) {
    HttpReply reply;
    size_t end;
    while ((end = data_.find("\r\n\r\n")) == std::string::npos) {
      if (!Receive()) return {};
    }
    std::vector<std::string> lines = absl::StrSplit(data_.substr(0, end), "\r\n");
    data_.erase(0, end + 4);
    EXPECT_TRUE(absl::StartsWith(lines[0], "HTTP/1.1 ")) << lines[0];
    EXPECT_TRUE(absl::SimpleAtoi(lines[0].substr(9, 3), &reply.status)) << lines[0];
    for (size_t i = 1; i < lines.size(); ++i) {
      std::pair<std::string, std::string> header = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
      EXPECT_TRUE(reply.headers.emplace(absl::AsciiStrToLower(header.first), header.second).second)
          << lines[i];
    }
    size_t length = 0;
    auto given = reply.headers.find("content-length");
    if (!to_head && given != reply.headers.end() && !absl::SimpleAtoi(given->second, &length)) return {};
    while (data_.size() < length) {
      if (!Receive()) return {};
    }
    reply.body = data_.substr(0, length);
    data_.erase(0, length);
    return reply;
  }

  HttpReply Ask(absl::string_view text) {
    Send(text);
    return Read();
  }
  HttpReply Get(absl::string_view path) {
    return Ask(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: h\r\n\r\n"));
  }
  // `headers`: lines, each with its end.
  HttpReply Post(absl::string_view path, absl::string_view body, absl::string_view headers = "") {
    return Ask(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: h\r\n", headers,
                            "Content-Length: ", body.size(), "\r\n\r\n", body));
  }

  // Nothing follows; what comes can be read.
  void EndSending() const { ::shutdown(socket_.get(), SHUT_WR); }
  // Waits for the other end to close the connection; false when something came instead.
  bool ReadEnd() { return data_.empty() && !Receive() && ended_; }
  void Close() { socket_.Reset(); }
  // From any thread: whoever reads sees the end.
  void HangUp() const { ::shutdown(socket_.get(), SHUT_RDWR); }
  // As a process's end does that has not read everything.
  void Reset() {
    linger none{1, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    Close();
  }

 private:
  bool Receive() {
    char piece[65536];
    ssize_t got = ::recv(socket_.get(), piece, sizeof piece, 0);
    if (got > 0) data_.append(piece, static_cast<size_t>(got));
    ended_ = got == 0 || (got < 0 && errno == ECONNRESET);
    return got > 0;
  }

  UniqueFd socket_;
  std::string data_;
  bool ended_ = false;
};

}  // namespace rekindle::functions
