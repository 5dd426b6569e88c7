// One connection of an HTTP/1.1 server: reads requests one after the other, and writes their answers.
#pragma once

#include <any>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "boost/asio/basic_stream_socket.hpp"
#include "boost/asio/generic/stream_protocol.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/strand.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http/parser.hpp"
#include "functions/http_handler.h"
#include "functions/http_limits.h"
#include "functions/http_message.h"

namespace rekindle::functions {

class HttpServer;
using HttpStrand = boost::asio::strand<boost::asio::io_context::executor_type>;

// A client that closes its end, or ends what it sends, is gone: a request of it that is being answered is
// dropped. While one is, what follows it is read up to a limit and waits.
//
// All methods but Answer and Close run on the connection's strand.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, HttpStrand>;

  HttpConnection(std::shared_ptr<HttpServer> server, std::shared_ptr<HttpHandler> handler, HttpStrand strand,
                 Socket socket, std::any context, std::optional<HttpAnswer> refusal);
  ~HttpConnection() { ReleaseBody(); }

  void Start();
  // Answers a request of this connection; nothing happens when it has been answered, or the connection is
  // closed. Thread-safe, and safe after the HttpThreads have ended.
  static void Answer(const std::weak_ptr<HttpConnection>& connection, uint64_t number, HttpAnswer answer);
  static void Answer(const HttpExchange& exchange, HttpAnswer answer) {
    Answer(exchange.connection, exchange.number, std::move(answer));
  }
  // Thread-safe, all; at the strand's next turn.
  void Close();
  // Takes no further request: closes when what it is at has been answered, or its first request.
  void FinishUp();
  // Of one that is refused: whatever request may come, it is told so now, as far as it takes that, and
  // closed.
  void EndRefusal();

  const std::any& context() const { return context_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State {
    kHead,       // a request's head, or the connection is idle
    kBody,       // its body
    kAnswering,  // the handler has it
    kWriting,
    kLingering,  // the last answer is written; what still comes is thrown away, so that the client can read
                 // it
    kClosed,
  };

  void Read();
  // Of which at least the beginning has come.
  bool HasRequest();
  void OnRead(const boost::system::error_code& error, size_t bytes);
  // Goes as far as what has been read allows.
  void Advance();
  // True when a request is complete; else more is to be read, or the connection is past reading requests.
  bool ParseRequest();
  bool OnHead();
  // The body comes next, and so many bytes of it are to have room. False: it is refused, or waits for that.
  bool BeginBody(size_t bytes);
  void AskForRoomAgain();
  // True when there is room for so many bytes of the body that is being read; else it is refused, or, where
  // none of it has come yet, may wait.
  bool ReserveBody(size_t bytes);
  void LimitTime();
  void ContinueExpected();
  void Refuse(HttpAnswer answer);
  void Write(HttpAnswer answer);
  void OnWritten();
  void Linger();
  void CloseNow();
  void ReleaseBody();
  void SetDeadline(absl::Duration time);
  void SetDeadline(Clock::time_point deadline);
  void WatchDeadline();

  // Before what lives on it.
  const std::shared_ptr<boost::asio::io_context> io_;
  const std::shared_ptr<HttpServer> server_;
  const std::shared_ptr<HttpHandler> handler_;
  const HttpStrand strand_;
  Socket socket_;
  const std::any context_;
  std::optional<HttpAnswer> refusal_;  // of whatever request comes

  State state_ = State::kHead;
  bool reading_ = false;
  bool reading_ahead_ = false;
  bool advancing_ = false;
  uint64_t number_ = 0;  // of the request being answered, or the last one

  boost::beast::flat_buffer buffer_;
  // Where a read goes that is begun while a request is answered: the buffer may be consumed before it ends.
  std::array<char, 4096> ahead_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool head_timed_ = false;
  bool body_timed_ = false;
  size_t largest_body_ = 0;
  size_t reserved_body_ = 0;
  bool waits_for_room_ = false;  // in State::kHead, for `body_to_come_`
  size_t body_to_come_ = 0;
  std::vector<std::shared_ptr<void>> body_rooms_;  // the handler's
  unsigned minor_ = 1;
  bool keep_alive_ = true;
  bool finishes_up_ = false;   // what is in work, and no more
  bool without_body_ = false;  // HEAD

  std::string head_;
  std::shared_ptr<const std::string> body_;

  // Armed for a time not after the deadline; moved on only when it fires, so that most requests need not
  // touch it.
  boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, HttpStrand> timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point armed_ = Clock::time_point::max();
};

}  // namespace rekindle::functions
