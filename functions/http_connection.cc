#include "functions/http_connection.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/dispatch.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/http/error.hpp"
#include "functions/http_server.h"

namespace rekindle::functions {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kSmallRead = 8 << 10;
constexpr size_t kLargeRead = 256 << 10;
// While a request is being answered.
constexpr size_t kMostReadAhead = 64 << 10;
// What room a body of unknown length has at first.
constexpr size_t kFirstRoom = 64 << 10;
constexpr absl::Duration kLingerTime = absl::Seconds(10);

// Where a body is said to be coded otherwise than in chunks alone, nobody here knows where it ends: the
// parser takes it for none, and what follows for the next request (RFC 9112, 6.1 and 6.3). Empty: it is not.
std::string TroubleWithCodings(const HttpRequestHead& head, unsigned minor, int* status) {
  const auto codings = head.equal_range(http::field::transfer_encoding);
  if (codings.first == codings.second) return "";
  *status = 400;
  if (minor == 0) return "HTTP/1.0 has no Transfer-Encoding; send Content-Length";
  const absl::string_view coding = View(codings.first->value());
  if (std::next(codings.first) == codings.second && absl::EqualsIgnoreCase(coding, "chunked")) return "";
  *status = 501;
  return "of Transfer-Encoding only \"chunked\" is known, once; send that, or Content-Length";
}

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpServer> server, std::shared_ptr<HttpHandler> handler,
                               HttpStrand strand, Socket socket, std::any context,
                               std::optional<HttpAnswer> refusal)
    : io_(server->io()),
      server_(std::move(server)),
      handler_(std::move(handler)),
      strand_(std::move(strand)),
      socket_(std::move(socket)),
      context_(std::move(context)),
      refusal_(std::move(refusal)),
      buffer_(server_->limits().head + kLargeRead),
      timer_(strand_) {}

void HttpConnection::Start() {
  asio::dispatch(strand_, [self = shared_from_this()] {
    const HttpLimits& limits = self->server_->limits();
    self->SetDeadline(self->refusal_ ? limits.head_time : limits.idle_time);
    self->Advance();
  });
}

void HttpConnection::Close() {
  asio::post(strand_, [self = shared_from_this()] { self->CloseNow(); });
}

void HttpConnection::FinishUp() {
  asio::post(strand_, [self = shared_from_this()] {
    self->keep_alive_ = false;
    self->finishes_up_ = true;
    if (self->state_ == State::kHead && !self->HasRequest()) {
      if (self->number_ > 0) return self->CloseNow();
      // The first request may be on its way: it gets an answer, but nobody waits for it.
      self->server_->HasFinished(self.get());
    }
    if (self->state_ == State::kLingering) self->server_->HasFinished(self.get());
  });
}

void HttpConnection::EndRefusal() {
  asio::post(strand_, [self = shared_from_this()] {
    if (self->state_ == State::kHead && self->refusal_) {
      std::string text = self->refusal_->Head(1, false);
      if (self->refusal_->body()) text += *self->refusal_->body();
      error_code ignored;
      self->socket_.write_some(asio::buffer(text), ignored);
      self->socket_.shutdown(Socket::shutdown_send, ignored);
    }
    self->CloseNow();
  });
}

bool HttpConnection::HasRequest() {
  if (parser_ || buffer_.size() > 0) return true;
  int bytes = 0;
  return ::ioctl(socket_.native_handle(), FIONREAD, &bytes) == 0 && bytes > 0;
}

void HttpConnection::Answer(const std::weak_ptr<HttpConnection>& connection, uint64_t number,
                            HttpAnswer answer) {
  std::shared_ptr<HttpConnection> self = connection.lock();
  if (!self) return;
  // Weakly: a loop that has ended must not keep what keeps the loop.
  asio::dispatch(self->strand_, [connection, number, answer = std::move(answer)]() mutable {
    std::shared_ptr<HttpConnection> open = connection.lock();
    if (open && open->state_ == State::kAnswering && open->number_ == number) open->Write(std::move(answer));
  });
}

void HttpConnection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kLingering) buffer_.consume(buffer_.size());
  asio::mutable_buffer into;
  reading_ahead_ = waits_for_room_ || state_ == State::kAnswering || state_ == State::kWriting;
  if (reading_ahead_) {
    // Also how the client's end is noticed.
    if (buffer_.size() >= kMostReadAhead) return;
    into = asio::buffer(ahead_);
  } else {
    size_t room = buffer_.max_size() - buffer_.size();
    into = buffer_.prepare(std::min(room, state_ == State::kHead ? kSmallRead : kLargeRead));
  }
  reading_ = true;
  socket_.async_read_some(into, [self = shared_from_this()](const error_code& error, size_t bytes) {
    self->OnRead(error, bytes);
  });
}

void HttpConnection::OnRead(const error_code& error, size_t bytes) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (error) return CloseNow();
  if (reading_ahead_) asio::buffer_copy(buffer_.prepare(bytes), asio::buffer(ahead_, bytes));
  buffer_.commit(bytes);
  Advance();
}

void HttpConnection::Advance() {
  if (advancing_) return;
  // An answer within OnRequest leaves the next request to this loop, however many there are.
  advancing_ = true;
  while (state_ <= State::kBody && ParseRequest()) {
    state_ = State::kAnswering;
    SetDeadline(Clock::time_point::max());
    ReleaseBody();
    ++number_;
    HttpRequest request = parser_->release();
    parser_.reset();
    handler_->OnRequest({shared_from_this(), number_}, std::move(request));
  }
  advancing_ = false;
  Read();
}

bool HttpConnection::ParseRequest() {
  if (waits_for_room_) return false;
  if (!parser_) {
    if (buffer_.size() == 0) return false;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(server_->limits().head));
    // OnHead says how much; boost::none would refuse every body in some versions.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    parser_->eager(false);
    head_timed_ = body_timed_ = false;
  }
  error_code error;
  while (!parser_->is_done()) {
    if (buffer_.size() == 0) break;
    buffer_.consume(parser_->put(buffer_.data(), error));
    if (error == http::error::need_more && buffer_.size() < buffer_.max_size()) break;
    if (error == http::error::body_limit) {
      Refuse(handler_->OnTooLarge(shared_from_this(), parser_->get().base(), largest_body_));
      return false;
    }
    if (error) {
      bool large = error == http::error::header_limit || error == http::error::need_more;
      Refuse(handler_->OnBadRequest(shared_from_this(), large ? 431 : 400, error.message()));
      return false;
    }
    if (state_ == State::kHead && parser_->is_header_done() && !OnHead()) return false;
    // Its length was not told: it gets room as it comes.
    if (const size_t bytes = parser_->get().body().size(); bytes > reserved_body_) {
      if (!ReserveBody(std::min(std::max(bytes, reserved_body_ * 2), largest_body_))) return false;
    }
  }
  if (parser_->is_done()) return true;
  LimitTime();
  return false;
}

void HttpConnection::LimitTime() {
  bool& timed = state_ == State::kHead ? head_timed_ : body_timed_;
  if (std::exchange(timed, true)) return;
  SetDeadline(state_ == State::kHead ? server_->limits().head_time : server_->limits().body_time);
}

bool HttpConnection::OnHead() {
  const HttpRequestHead& head = parser_->get().base();
  minor_ = parser_->get().version() % 10;
  keep_alive_ = parser_->get().keep_alive() && !finishes_up_;
  without_body_ = parser_->get().method() == http::verb::head;
  if (refusal_) {
    HttpAnswer refusal = *std::exchange(refusal_, std::nullopt);
    Refuse(handler_->InsteadOfRefusal(head).value_or(std::move(refusal)));
    return false;
  }
  int status = 0;
  if (const std::string trouble = TroubleWithCodings(head, minor_, &status); !trouble.empty()) {
    Refuse(handler_->OnBadRequest(shared_from_this(), status, trouble));
    return false;
  }
  largest_body_ = 0;
  if (std::optional<HttpAnswer> refusal = handler_->OnHead(shared_from_this(), head, largest_body_)) {
    Refuse(*std::move(refusal));
    return false;
  }
  if (parser_->is_done()) return true;
  const auto length = parser_->content_length();
  if (length.has_value() && *length > largest_body_) {
    Refuse(handler_->OnTooLarge(shared_from_this(), head, largest_body_));
    return false;
  }
  const size_t room = length.has_value() ? static_cast<size_t>(*length) : std::min(kFirstRoom, largest_body_);
  return BeginBody(room);
}

bool HttpConnection::BeginBody(size_t bytes) {
  if (!ReserveBody(bytes)) {
    if (waits_for_room_) {
      body_to_come_ = bytes;
      body_timed_ = true;
      SetDeadline(server_->limits().body_time);
    }
    return false;
  }
  parser_->body_limit(largest_body_);
  state_ = State::kBody;
  ContinueExpected();
  return true;
}

void HttpConnection::AskForRoomAgain() {
  if (state_ != State::kHead || !std::exchange(waits_for_room_, false)) return;
  if (BeginBody(body_to_come_)) Advance();
}

bool HttpConnection::ReserveBody(size_t bytes) {
  const size_t more = bytes - reserved_body_;
  BodyRoom room;
  if (reserved_body_ == 0) {
    room.ask_again = [strand = strand_, weak = weak_from_this()] {
      asio::post(strand, [weak] {
        if (std::shared_ptr<HttpConnection> self = weak.lock()) self->AskForRoomAgain();
      });
    };
  }
  if (std::optional<HttpAnswer> refusal = handler_->OnBody(shared_from_this(), more, room)) {
    Refuse(*std::move(refusal));
    return false;
  }
  if (room.later) {
    waits_for_room_ = true;
    return false;
  }
  if (!server_->ReserveBody(more)) {
    Refuse(handler_->OnNoMemory(shared_from_this()));
    return false;
  }
  reserved_body_ = bytes;
  body_rooms_.push_back(std::move(room.held));
  return true;
}

void HttpConnection::ContinueExpected() {
  if (minor_ == 0 || buffer_.size() > 0 ||
      !absl::EqualsIgnoreCase(Header(parser_->get().base(), "Expect"), "100-continue")) {
    return;
  }
  // A few bytes on a connection that waits for them: there is room for them. A client that gets none sends
  // its body after a while.
  error_code ignored;
  socket_.write_some(asio::buffer("HTTP/1.1 100 Continue\r\n\r\n", 25), ignored);
}

void HttpConnection::Refuse(HttpAnswer answer) {
  if (state_ == State::kClosed) return;
  ReleaseBody();
  ++number_;
  state_ = State::kAnswering;
  Write(std::move(answer.Close()));
}

void HttpConnection::Write(HttpAnswer answer) {
  state_ = State::kWriting;
  if (answer.close()) keep_alive_ = false;
  head_ = answer.Head(minor_, keep_alive_);
  if (!without_body_) body_ = answer.body();
  std::array<asio::const_buffer, 2> buffers = {asio::buffer(head_),
                                               body_ ? asio::buffer(*body_) : asio::const_buffer()};
  size_t size = head_.size() + buffers[1].size();
  // Nearly always all of it goes at once.
  error_code error;
  size_t sent = socket_.write_some(buffers, error);
  if (error && error != asio::error::would_block) return CloseNow();
  if (sent == size) return OnWritten();
  buffers[1] += sent - std::min(sent, head_.size());
  buffers[0] += sent;
  SetDeadline(server_->limits().write_time);
  asio::async_write(socket_, buffers, [self = shared_from_this()](const error_code& failure, size_t) {
    if (self->state_ != State::kWriting) return;
    if (failure) return self->CloseNow();
    self->OnWritten();
  });
}

void HttpConnection::OnWritten() {
  body_.reset();
  if (!keep_alive_) return Linger();
  state_ = State::kHead;
  SetDeadline(server_->limits().idle_time);
  if (advancing_) return;
  if (buffer_.size() == 0) return Read();
  // Who answers may hold locks that the next request's handler takes.
  asio::post(strand_, [self = shared_from_this()] { self->Advance(); });
}

void HttpConnection::Linger() {
  state_ = State::kLingering;
  server_->HasFinished(this);
  parser_.reset();
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  SetDeadline(kLingerTime);
  if (!advancing_) Read();
}

void HttpConnection::CloseNow() {
  if (state_ == State::kClosed) return;
  bool unanswered = state_ == State::kAnswering || state_ == State::kWriting;
  state_ = State::kClosed;
  ReleaseBody();
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel(ignored);
  server_->Forget(this);
  handler_->OnClosed(*this, unanswered);
}

void HttpConnection::ReleaseBody() {
  server_->ReleaseBody(std::exchange(reserved_body_, 0));
  body_rooms_.clear();
}

void HttpConnection::SetDeadline(absl::Duration time) {
  SetDeadline(time == absl::InfiniteDuration() ? Clock::time_point::max()
                                               : Clock::now() + absl::ToChronoNanoseconds(time));
}

void HttpConnection::SetDeadline(Clock::time_point deadline) {
  deadline_ = deadline;
  if (deadline_ < armed_) WatchDeadline();
}

void HttpConnection::WatchDeadline() {
  armed_ = deadline_;
  timer_.expires_at(armed_);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->state_ == State::kClosed) return;  // cancelled: closed, or armed for an earlier time
    self->armed_ = Clock::time_point::max();
    if (Clock::now() >= self->deadline_) return self->CloseNow();
    if (self->deadline_ != Clock::time_point::max()) self->WatchDeadline();
  });
}

}  // namespace rekindle::functions
