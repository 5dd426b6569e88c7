// What an HTTP server asks of who answers its requests.
#pragma once

#include <any>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "functions/http_message.h"

namespace rekindle::functions {

class HttpConnection;

// A request that is to be answered: by HttpConnection::Answer, once, from any thread, now or later. An answer
// that is not within OnRequest leads to no call of OnRequest before it returns.
struct HttpExchange {
  std::shared_ptr<HttpConnection> connection;
  uint64_t number = 0;  // of the connection's requests
};

struct BodyRoom {
  std::shared_ptr<void> held;
  // Null: the body has some already, which others may wait for. Otherwise the handler may keep it, say
  // `later`, and call it once, on any thread, when there may be room: it is asked again then.
  std::function<void()> ask_again;
  bool later = false;
};

// Once it is taken, there is one call at a time of one connection; of several too, where the server has one
// strand.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Whether a new connection is taken. `context` is kept with it. `refusal`, if one is given, answers the
  // first request of a connection that is not taken. Called on the server's threads that accept (HttpServer),
  // for connections of several listeners at a time.
  virtual bool OnConnect(int socket, std::any& context, std::optional<HttpAnswer>& refusal) = 0;
  // The answer to the first request of a connection beyond the limit. Called as OnConnect.
  virtual std::optional<HttpAnswer> TooManyConnections() = 0;

  // The head of the first request of a connection that is refused has come. An answer takes the refusal's
  // place; the connection is closed after either.
  virtual std::optional<HttpAnswer> InsteadOfRefusal(const HttpRequestHead& /*head*/) { return std::nullopt; }

  // The head of a request with or without a body has come. An answer refuses the request, and the connection
  // is closed after it; otherwise a body of up to `largest_body` bytes is read.
  virtual std::optional<HttpAnswer> OnHead(const std::shared_ptr<HttpConnection>& connection,
                                           const HttpRequestHead& head, size_t& largest_body) = 0;
  // The body is larger than it may be.
  virtual HttpAnswer OnTooLarge(const std::shared_ptr<HttpConnection>& connection,
                                const HttpRequestHead& head, size_t largest_body) = 0;
  // Room for `bytes` of a body that is about to be read, or, where its length was not told, for more of it
  // than there was. An answer refuses it; otherwise `room` is kept until the body has been read, or will not
  // be.
  virtual std::optional<HttpAnswer> OnBody(const std::shared_ptr<HttpConnection>& /*connection*/,
                                           size_t /*bytes*/, BodyRoom& /*room*/) {
    return std::nullopt;
  }
  // All that clients send at present would take too much memory.
  virtual HttpAnswer OnNoMemory(const std::shared_ptr<HttpConnection>& connection) = 0;
  // What came is not HTTP, or more than a head may be (431).
  virtual HttpAnswer OnBadRequest(const std::shared_ptr<HttpConnection>& connection, int status,
                                  const std::string& why) = 0;
  virtual void OnRequest(HttpExchange exchange, HttpRequest request) = 0;
  // `unanswered`: a request was being answered, and its answer has not been sent to its end.
  virtual void OnClosed(HttpConnection& connection, bool unanswered) = 0;
};

}  // namespace rekindle::functions
