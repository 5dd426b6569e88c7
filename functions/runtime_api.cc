#include "functions/runtime_api.h"

#include <any>
#include <atomic>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "boost/asio/dispatch.hpp"
#include "boost/asio/post.hpp"
#include "functions/http_handler.h"
#include "functions/http_server.h"
#include "nlohmann/json.hpp"

namespace rekindle::functions {

namespace asio = boost::asio;
namespace http = boost::beast::http;

namespace {

constexpr absl::string_view kRuntimeRoot = "/2018-06-01/runtime/";
constexpr absl::string_view kErrorType = "Lambda-Runtime-Function-Error-Type";
// Of the error's JSON, in the trailers of a response that is streamed.
constexpr absl::string_view kErrorBody = "Lambda-Runtime-Function-Error-Body";

constexpr absl::string_view kNoRoom = "Function.NoRoomForResponse";

constexpr size_t kLargestStartError = 1 << 20;
// An answer, or an error of the start, that is too late; the connection of one that is larger is closed.
constexpr size_t kLargestUnwanted = 64 << 10;

std::string ErrorJson(absl::string_view type, absl::string_view message) {
  nlohmann::ordered_json error = {{"errorMessage", std::string(message)}, {"errorType", std::string(type)}};
  return error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpAnswer Error(int status, absl::string_view type, absl::string_view message) {
  return HttpAnswer(status, ErrorJson(type, message));
}
HttpAnswer InvalidRequestId() { return Error(400, "InvalidRequestID", "Invalid request ID"); }
HttpAnswer InvalidTransition(absl::string_view what) {
  return Error(403, "InvalidStateTransition", absl::StrCat("State transition is not allowed: ", what));
}
HttpAnswer Accepted() { return HttpAnswer(202, R"({"status":"OK"})"); }

enum class RuntimeCall { kUnknown, kNext, kResponse, kError, kInitError, kRestoreNext, kRestoreError };

struct RuntimeRoute {
  RuntimeCall call = RuntimeCall::kUnknown;
  std::string request_id;  // of kResponse and kError
};

RuntimeRoute RuntimeRouteOf(const HttpRequestHead& head) {
  absl::string_view path = Path(head);
  if (!absl::ConsumePrefix(&path, kRuntimeRoot)) return {};
  if (head.method() == http::verb::get) {
    if (path == "invocation/next") return {RuntimeCall::kNext, ""};
    if (path == "restore/next") return {RuntimeCall::kRestoreNext, ""};
    return {};
  }
  if (head.method() != http::verb::post) return {};
  if (path == "init/error") return {RuntimeCall::kInitError, ""};
  if (path == "restore/error") return {RuntimeCall::kRestoreError, ""};
  if (!absl::ConsumePrefix(&path, "invocation/")) return {};
  std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(path, absl::MaxSplits('/', 1));
  if (parts.second == "response") return {RuntimeCall::kResponse, std::string(parts.first)};
  if (parts.second == "error") return {RuntimeCall::kError, std::string(parts.first)};
  return {};
}

// Its payload is held here and by the answer that is being written.
struct Given {
  Invocation invocation;
  bool taken = false;  // it has been the runtime's
};

HttpAnswer NextAnswer(const Given& given) {
  const Invocation& invocation = given.invocation;
  HttpAnswer answer(200);
  answer.Add("Lambda-Runtime-Aws-Request-Id", invocation.request_id)
      .Add("Lambda-Runtime-Deadline-Ms", absl::StrCat(absl::ToUnixMillis(invocation.deadline)))
      .Add("Lambda-Runtime-Invoked-Function-Arn", invocation.function_arn);
  if (!invocation.trace_id.empty()) answer.Add("Lambda-Runtime-Trace-Id", invocation.trace_id);
  if (!invocation.client_context.empty())
    answer.Add("Lambda-Runtime-Client-Context", invocation.client_context);
  if (!invocation.cognito_identity.empty()) {
    answer.Add("Lambda-Runtime-Cognito-Identity", invocation.cognito_identity);
  }
  answer.SetBody(invocation.payload, invocation.content_type);
  return answer;
}

}  // namespace

// Everything but the methods of RuntimeApi runs on the server's one strand. The observer is called last, when
// all is in its place: it may call back.
class RuntimeApi::Impl : public HttpHandler, public std::enable_shared_from_this<RuntimeApi::Impl> {
 public:
  Impl(const HttpThreads& threads, Options options, std::weak_ptr<Observer> observer)
      : options_(std::move(options)),
        observer_(std::move(observer)),
        server_(std::make_shared<HttpServer>(threads, options_.limits, /*one_strand=*/true)) {}

  absl::Status Listen(UniqueFd listener) { return server_->Listen(std::move(listener), weak_from_this()); }

  void Invoke(Invocation invocation) {
    asio::dispatch(server_->strand(),
                   [self = shared_from_this(), invocation = std::move(invocation)]() mutable {
                     for (const Given& known : self->invocations_) {
                       if (known.invocation.request_id == invocation.request_id) return;
                     }
                     self->invocations_.push_back({std::move(invocation)});
                     self->GiveOut();
                   });
  }

  void Abandon(std::string request_id) {
    asio::dispatch(server_->strand(), [self = shared_from_this(), request_id = std::move(request_id)] {
      auto& invocations = self->invocations_;
      for (auto it = invocations.begin(); it != invocations.end(); ++it) {
        if (it->invocation.request_id != request_id) continue;
        if (it == invocations.begin()) self->TakeBack();
        invocations.erase(it);
        break;
      }
      self->GiveOut();
    });
  }

  void Close() {
    closed_ = true;
    server_->Close();
  }

  bool OnConnect(int socket, std::any&, std::optional<HttpAnswer>&) override {
    return !closed_ && (!options_.may_connect || options_.may_connect(socket));
  }

  std::optional<HttpAnswer> TooManyConnections() override { return std::nullopt; }

  std::optional<HttpAnswer> OnHead(const std::shared_ptr<HttpConnection>& connection,
                                   const HttpRequestHead& head, size_t& largest_body) override {
    RuntimeRoute route = RuntimeRouteOf(head);
    switch (route.call) {
      case RuntimeCall::kUnknown:
        return Error(
            404, "NotFound",
            absl::StrCat("no such call of the Runtime API: ", View(head.method_string()), " ", Path(head)));
      case RuntimeCall::kResponse:
      case RuntimeCall::kError:
        // Bodies that nobody wants, or several at a time, could take much memory.
        if (!IsPresent(route.request_id)) {
          largest_body = kLargestUnwanted;
          return std::nullopt;
        }
        if (answering_.connection != nullptr && answering_.connection != connection.get()) {
          return InvalidTransition("the invocation is being answered on another connection");
        }
        answering_ = {connection.get(), route.request_id};
        largest_body = options_.largest_answer;
        return std::nullopt;
      case RuntimeCall::kInitError:
      case RuntimeCall::kRestoreError:
        if (ready_ || failed_) {
          largest_body = kLargestUnwanted;
          return std::nullopt;
        }
        if (failing_ != nullptr && failing_ != connection.get()) {
          return InvalidTransition("an error of the start is being told on another connection");
        }
        failing_ = connection.get();
        largest_body = kLargestStartError;
        return std::nullopt;
      case RuntimeCall::kNext:
      case RuntimeCall::kRestoreNext:
        return std::nullopt;
    }
    return std::nullopt;
  }

  HttpAnswer OnTooLarge(const std::shared_ptr<HttpConnection>& connection, const HttpRequestHead& head,
                        size_t largest_body) override {
    RuntimeRoute route = RuntimeRouteOf(head);
    const std::optional<std::string> answered = StopAnswering(*connection);
    bool answer = route.call == RuntimeCall::kResponse || route.call == RuntimeCall::kError;
    if (answer && !IsPresent(route.request_id)) return InvalidRequestId();
    const bool start_error =
        route.call == RuntimeCall::kInitError || route.call == RuntimeCall::kRestoreError;
    if (start_error && (ready_ || failed_)) return StartIsOver();
    if (answered) {
      // Told when the refusal is on its way.
      asio::post(server_->strand(), [self = shared_from_this(), id = *answered] {
        self->Finish(id, {.body = ErrorJson(
                              "Function.ResponseSizeTooLarge",
                              absl::StrCat("Response payload size exceeded maximum allowed payload size (",
                                           self->options_.largest_answer, " bytes).")),
                          .content_type = "application/json",
                          .failed = true,
                          .error_type = "Function.ResponseSizeTooLarge"});
      });
    }
    return Error(413, "RequestEntityTooLarge",
                 absl::StrCat("Exceeded maximum allowed payload size (", largest_body, " bytes)."));
  }

  std::optional<HttpAnswer> OnBody(const std::shared_ptr<HttpConnection>& connection, size_t bytes,
                                   BodyRoom& room) override {
    if (options_.bodies == nullptr) return std::nullopt;
    const size_t most = options_.bodies_of_owner;
    if (room.ask_again == nullptr) {
      room.held = options_.bodies->Take(options_.owner, bytes, most);
      return room.held ? std::nullopt : std::optional(OnNoMemory(connection));
    }
    if (bytes > most) return OnNoMemory(connection);
    // Who waits has none, so those that have some get on; its invocation's time ends it.
    room.held =
        options_.bodies->TakeOrAwait(options_.owner, bytes, most, connection, std::move(room.ask_again));
    room.later = room.held == nullptr;
    return std::nullopt;
  }

  HttpAnswer OnNoMemory(const std::shared_ptr<HttpConnection>& connection) override {
    if (std::optional<std::string> answered = StopAnswering(*connection)) {
      // The handler has run: it is not to run again for want of room. Told when the refusal is on its way.
      asio::post(server_->strand(), [self = shared_from_this(), id = *std::move(answered)] {
        self->Finish(id, {.body = ErrorJson(kNoRoom,
                                            "the functions of this owner send more at a time than there is "
                                            "room for: send smaller responses, or fewer at once; one whose "
                                            "length is told at its beginning waits for room"),
                          .content_type = "application/json",
                          .failed = true,
                          .error_type = std::string(kNoRoom)});
      });
    }
    return Error(413, "RequestEntityTooLarge", "Exceeded the size of what may be sent at a time");
  }

  HttpAnswer OnBadRequest(const std::shared_ptr<HttpConnection>& connection, int status,
                          const std::string& why) override {
    StopAnswering(*connection);
    return Error(status, "InvalidRequest", why);
  }

  void OnRequest(HttpExchange exchange, HttpRequest request) override {
    StopAnswering(*exchange.connection);
    RuntimeRoute route = RuntimeRouteOf(request);
    switch (route.call) {
      case RuntimeCall::kNext:
        return Next(std::move(exchange));
      case RuntimeCall::kResponse:
      case RuntimeCall::kError:
        return Answered(exchange, route, request);
      case RuntimeCall::kInitError:
      case RuntimeCall::kRestoreError:
        return Failed(exchange, route.call, request);
      case RuntimeCall::kRestoreNext:
        return HttpConnection::Answer(exchange, HttpAnswer(200, "{}"));
      case RuntimeCall::kUnknown:
        return HttpConnection::Answer(exchange, HttpAnswer(404));
    }
  }

  void OnClosed(HttpConnection& connection, bool unanswered) override {
    StopAnswering(connection);
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (it->connection.get() != &connection) continue;
      waiting_.erase(it);
      break;
    }
    if (given_to_ == &connection) {
      given_to_ = nullptr;
      // It has not reached the runtime, so another connection that waits may have it.
      if (unanswered) given_ = false;
      GiveOut();
    }
  }

 private:
  bool IsPresent(absl::string_view request_id) const {
    return given_ && invocations_.front().invocation.request_id == request_id;
  }

  HttpAnswer StartIsOver() const {
    return InvalidTransition(ready_ ? "the function has started" : "the function has failed to start");
  }

  // Nothing of a body is expected from it. Returns the invocation whose answer it was to be, if that is still
  // unanswered.
  std::optional<std::string> StopAnswering(const HttpConnection& connection) {
    if (failing_ == &connection) failing_ = nullptr;
    if (answering_.connection != &connection) return std::nullopt;
    return std::exchange(answering_, {}).request_id;
  }

  // Before the first invocation goes. An answer to it that is still being sent is nobody's then, and keeps
  // no other connection from answering the next.
  void TakeBack() {
    given_ = false;
    given_to_ = nullptr;
    answering_ = {};
  }

  void GiveOut() {
    const auto taken_back = [](const Given& one) {
      return !one.taken && one.invocation.taken && one.invocation.taken->exchange(true);
    };
    while (!given_ && !invocations_.empty() && !waiting_.empty() && taken_back(invocations_.front()))
      invocations_.pop_front();
    if (given_ || invocations_.empty() || waiting_.empty()) return;
    invocations_.front().taken = true;
    HttpExchange exchange = std::move(waiting_.front());
    waiting_.pop_front();
    given_ = true;
    given_to_ = exchange.connection.get();
    HttpConnection::Answer(exchange, NextAnswer(invocations_.front()));
  }

  void Next(HttpExchange exchange) {
    if (failed_)
      return HttpConnection::Answer(exchange, InvalidTransition("the function has failed to start"));
    bool first = !std::exchange(ready_, true);
    if (given_) {
      given_to_ = nullptr;
      HttpConnection::Answer(exchange, NextAnswer(invocations_.front()));
    } else {
      waiting_.push_back(std::move(exchange));
      GiveOut();
    }
    if (first) {
      if (auto observer = Observing()) observer->OnReady();
    }
  }

  void Answered(const HttpExchange& exchange, const RuntimeRoute& route, HttpRequest& request) {
    if (!IsPresent(route.request_id)) return HttpConnection::Answer(exchange, InvalidRequestId());
    Answer answer;
    answer.content_type = std::string(Header(request, "Content-Type"));
    answer.error_type = std::string(Header(request, kErrorType));
    answer.failed = route.call == RuntimeCall::kError;
    std::string streamed_error;
    if (!answer.failed && !answer.error_type.empty() && request.chunked()) {
      // The headers of a chunked response are its trailers too.
      answer.failed = true;
      answer.content_type = "application/json";
      if (absl::Base64Unescape(Header(request, kErrorBody), &streamed_error) && !streamed_error.empty()) {
        answer.body = std::move(streamed_error);
      } else {
        answer.body = ErrorJson(answer.error_type, "the response ended with an error");
      }
    } else {
      answer.body = std::move(request.body());
    }
    if (!answer.failed) answer.error_type.clear();
    // The process may end as soon as it has heard, and its end must not be told first.
    Finish(route.request_id, std::move(answer));
    HttpConnection::Answer(exchange, Accepted());
  }

  void Finish(const std::string& request_id, Answer answer) {
    if (!IsPresent(request_id)) return;
    TakeBack();
    std::string id = std::move(invocations_.front().invocation.request_id);
    invocations_.pop_front();
    GiveOut();
    if (auto observer = Observing()) observer->OnAnswer(std::move(id), std::move(answer));
  }

  void Failed(const HttpExchange& exchange, RuntimeCall call, HttpRequest& request) {
    if (ready_ || failed_) return HttpConnection::Answer(exchange, StartIsOver());
    failed_ = true;
    if (auto observer = Observing()) {
      std::string type(Header(request, kErrorType));
      if (call == RuntimeCall::kInitError) {
        observer->OnInitError(std::move(type), std::move(request.body()));
      } else {
        observer->OnRestoreError(std::move(type), std::move(request.body()));
      }
    }
    HttpConnection::Answer(exchange, Accepted());  // as with answers
  }

  std::shared_ptr<Observer> Observing() const { return closed_ ? nullptr : observer_.lock(); }

  const Options options_;
  const std::weak_ptr<Observer> observer_;
  const std::shared_ptr<HttpServer> server_;
  std::atomic<bool> closed_ = false;

  bool ready_ = false;
  bool failed_ = false;
  std::deque<Given> invocations_;
  bool given_ = false;  // the first of them is the runtime's
  std::deque<HttpExchange> waiting_;
  // For comparing only. The connection that alone has been given the invocation; that which sends its answer;
  // that which sends why it could not start.
  const HttpConnection* given_to_ = nullptr;
  struct Answering {
    const HttpConnection* connection = nullptr;
    std::string request_id;
  };
  Answering answering_;
  const HttpConnection* failing_ = nullptr;
};

RuntimeApi::RuntimeApi(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
RuntimeApi::~RuntimeApi() { impl_->Close(); }

absl::StatusOr<std::unique_ptr<RuntimeApi>> RuntimeApi::Start(HttpThreads& threads, UniqueFd listener,
                                                              Options options,
                                                              std::weak_ptr<Observer> observer) {
  auto impl = std::make_shared<Impl>(threads, std::move(options), std::move(observer));
  RK_RETURN_IF_ERROR(impl->Listen(std::move(listener)));
  return std::unique_ptr<RuntimeApi>(new RuntimeApi(std::move(impl)));
}

void RuntimeApi::Invoke(Invocation invocation) { impl_->Invoke(std::move(invocation)); }
void RuntimeApi::Abandon(std::string request_id) { impl_->Abandon(std::move(request_id)); }
void RuntimeApi::Close() { impl_->Close(); }

}  // namespace rekindle::functions
