#include "functions/http_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "boost/asio/dispatch.hpp"
#include "boost/asio/posix/basic_stream_descriptor.hpp"
#include "boost/asio/post.hpp"

namespace rekindle::functions {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Other work of the thread has its turn after so many new connections.
constexpr int kConnectionsAtOnce = 64;
// When the process has no descriptors left, this long until the next try.
constexpr std::chrono::milliseconds kPauseWhenFull(100);

// Refused ones that may wait for their requests, and for their clients to have read the answer.
constexpr size_t kMostRefused = 64;

int SocketFamily(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return AF_UNSPEC;
  return address.ss_family;
}

}  // namespace

struct HttpServer::Listener {
  Listener(std::shared_ptr<asio::io_context> context, const HttpStrand& strand, UniqueFd socket,
           std::weak_ptr<HttpHandler> its_handler)
      : io(std::move(context)),
        descriptor(strand, socket.Release()),
        pause(strand),
        handler(std::move(its_handler)) {}
  const std::shared_ptr<asio::io_context> io;  // before what lives on it
  asio::posix::basic_stream_descriptor<HttpStrand> descriptor;
  asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>,
                             HttpStrand>
      pause;
  const std::weak_ptr<HttpHandler> handler;
};

HttpServer::HttpServer(const HttpThreads& threads, HttpLimits limits, bool one_strand,
                       const HttpThreads* accepting)
    : io_(threads.context()),
      accepting_(accepting ? accepting->context() : io_),
      strand_(io_->get_executor()),
      limits_(limits),
      one_strand_(one_strand) {}

absl::Status HttpServer::Listen(UniqueFd listener, std::weak_ptr<HttpHandler> handler) {
  int listening = 0;
  socklen_t size = sizeof listening;
  if (::getsockopt(listener.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0) {
    return ErrnoStatus(errno, absl::StrCat("serving HTTP on descriptor ", listener.get()));
  }
  if (listening == 0) {
    return absl::InvalidArgumentError(absl::StrCat("serving HTTP on descriptor ", listener.get(),
                                                   ": it is not a listening socket: call listen() first"));
  }
  int flags = ::fcntl(listener.get(), F_GETFL);
  if (flags < 0 || ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("serving HTTP on descriptor ", listener.get()));
  }
  const HttpStrand strand = accepting_ == io_ ? strand_ : HttpStrand(accepting_->get_executor());
  auto made = std::make_shared<Listener>(accepting_, strand, std::move(listener), std::move(handler));
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return absl::FailedPreconditionError("the HTTP server is closed");
    listeners_.push_back(made);
  }
  asio::dispatch(strand, [self = shared_from_this(), made] { self->Wait(made); });
  return absl::OkStatus();
}

void HttpServer::Close() {
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<std::shared_ptr<HttpConnection>> connections;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    listeners.swap(listeners_);
    for (const auto& [_, connection] : connections_) connections.push_back(connection);
  }
  for (const auto& listener : listeners) {
    asio::post(listener->descriptor.get_executor(), [listener] {
      error_code ignored;
      listener->descriptor.close(ignored);
      listener->pause.cancel(ignored);
    });
  }
  for (const auto& connection : connections) connection->Close();
}

void HttpServer::FinishUp() {
  std::vector<std::shared_ptr<HttpConnection>> connections;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [known, connection] : connections_) {
      finishing_.insert(known);
      connections.push_back(connection);
    }
  }
  for (const auto& connection : connections) connection->FinishUp();
}

void HttpServer::AwaitFinished(const Deadline& deadline) {
  absl::MutexLock lock(&mutex_);
  auto all = +[](std::unordered_set<const HttpConnection*>* finishing) { return finishing->empty(); };
  AwaitUntil(mutex_, absl::Condition(all, &finishing_), deadline);
}

void HttpServer::HasFinished(const HttpConnection* connection) {
  absl::MutexLock lock(&mutex_);
  finishing_.erase(connection);
}

bool HttpServer::ReserveBody(size_t bytes) {
  if (bodies_.fetch_add(bytes) + bytes <= limits_.bodies) return true;
  bodies_ -= bytes;
  return false;
}

void HttpServer::Forget(const HttpConnection* connection) {
  std::shared_ptr<HttpConnection> kept;  // it may be the last reference: destroyed without the lock
  absl::MutexLock lock(&mutex_);
  finishing_.erase(connection);
  if (auto refused = refused_.extract(connection)) waiting_.erase(refused.mapped());
  auto known = connections_.find(connection);
  if (known == connections_.end()) return;
  kept = std::move(known->second);
  connections_.erase(known);
}

void HttpServer::Wait(std::shared_ptr<Listener> listener) {
  if (!listener->descriptor.is_open()) return;
  auto& descriptor = listener->descriptor;
  descriptor.async_wait(asio::posix::descriptor_base::wait_read,
                        [self = shared_from_this(), listener = std::move(listener)](const error_code& error) {
                          if (!error) self->Accept(listener);
                        });
}

void HttpServer::Accept(const std::shared_ptr<Listener>& listener) {
  std::shared_ptr<HttpHandler> handler = listener->handler.lock();
  if (!handler) return;
  for (int i = 0; i < kConnectionsAtOnce && listener->descriptor.is_open(); ++i) {
    UniqueFd connection(
        ::accept4(listener->descriptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) {
      Take(std::move(connection), handler);
      continue;
    }
    if (errno == EAGAIN) break;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      Log(LogLevel::kWarning, ErrnoStatus(errno, "taking an HTTP connection").message());
      listener->pause.expires_after(kPauseWhenFull);
      listener->pause.async_wait(
          [self = shared_from_this(), listener](const error_code&) { self->Wait(listener); });
      return;
    }
  }
  Wait(listener);
}

void HttpServer::Take(UniqueFd connection, const std::shared_ptr<HttpHandler>& handler) {
  bool too_many;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    too_many = connections_.size() - refused_.size() >= limits_.connections;
  }
  std::any context;
  std::optional<HttpAnswer> refusal;
  if (too_many) {
    refusal = handler->TooManyConnections();
  } else if (handler->OnConnect(connection.get(), context, refusal)) {
    return Serve(std::move(connection), handler, std::move(context), std::nullopt);
  }
  if (refusal) Serve(std::move(connection), handler, {}, std::move(refusal));
}

void HttpServer::Serve(UniqueFd connection, const std::shared_ptr<HttpHandler>& handler, std::any context,
                       std::optional<HttpAnswer> refusal) {
  int family = SocketFamily(connection.get());
  if (family != AF_UNIX) {
    int one = 1;
    ::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  HttpStrand strand = one_strand_ ? strand_ : HttpStrand(io_->get_executor());
  HttpConnection::Socket socket(strand);
  error_code error;
  socket.assign(asio::generic::stream_protocol(family, 0), connection.get(), error);
  if (!error) connection.Release();
  if (!error) socket.non_blocking(true, error);
  if (error) {
    Log(LogLevel::kWarning, absl::StrCat("taking an HTTP connection: ", error.message()));
    return;
  }
  const bool refused = refusal.has_value();
  auto made = std::make_shared<HttpConnection>(shared_from_this(), handler, strand, std::move(socket),
                                               std::move(context), std::move(refusal));
  std::shared_ptr<HttpConnection> told;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    connections_.emplace(made.get(), made);
    if (refused) {
      if (waiting_.size() >= kMostRefused) told = connections_[waiting_.extract(waiting_.begin()).mapped()];
      refused_.emplace(made.get(), next_turn_);
      waiting_.emplace(next_turn_++, made.get());
    }
  }
  if (told) told->EndRefusal();
  made->Start();
}

}  // namespace rekindle::functions
