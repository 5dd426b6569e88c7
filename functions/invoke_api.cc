#include "functions/invoke_api.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/status.h"
#include "functions/function_name.h"
#include "functions/http_handler.h"
#include "functions/http_server.h"
#include "functions/invoke_errors.h"
#include "functions/json_text.h"
#include "functions/listed_functions.h"
#include "functions/peer_address.h"
#include "functions/request_id.h"
#include "functions/shares.h"

namespace rekindle::functions {

namespace http = boost::beast::http;

namespace {

constexpr absl::string_view kRoot = "/2015-03-31/functions";
constexpr size_t kLongestClientContext = 3583;  // of its base64
constexpr size_t kLogTail = 4096;
constexpr int kMostListed = 50;

enum class Call { kUnknown, kHealth, kList, kGet, kGetConfiguration, kInvoke };

struct Route {
  Call call = Call::kUnknown;
  std::string function;  // as it was asked for
};

Route RouteOf(const HttpRequestHead& head) {
  absl::string_view path = Path(head);
  bool get = head.method() == http::verb::get || head.method() == http::verb::head;
  if (path == "/health" && get) return {Call::kHealth, ""};
  if (!absl::ConsumePrefix(&path, kRoot)) return {};
  if (path.empty() || path == "/") return {get ? Call::kList : Call::kUnknown, ""};
  if (!absl::ConsumePrefix(&path, "/")) return {};
  std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(path, absl::MaxSplits('/', 1));
  std::string function = DecodePercent(parts.first);
  if (head.method() == http::verb::post) {
    return {parts.second == "invocations" ? Call::kInvoke : Call::kUnknown, std::move(function)};
  }
  if (!get) return {};
  if (parts.second.empty()) return {Call::kGet, std::move(function)};
  return {parts.second == "configuration" ? Call::kGetConfiguration : Call::kUnknown, std::move(function)};
}

bool IsAsync(const HttpRequestHead& head) { return Header(head, "X-Amz-Invocation-Type") == "Event"; }

// Who is at the other end of a connection, or why nobody is served there.
using Identity = absl::StatusOr<std::any>;

// Of each connection.
struct Connected {
  Identity identity = std::any();
  std::string caller;  // whose shares count; empty: nobody's
  std::shared_ptr<void> share;
};

// Of a text that is JSON.
bool IsObject(absl::string_view json) {
  return absl::StartsWith(absl::StripLeadingAsciiWhitespace(json), "{");
}

absl::Status TakeClientContext(absl::string_view header, std::string& json) {
  if (header.empty()) return absl::OkStatus();
  if (header.size() > kLongestClientContext) {
    return absl::InvalidArgumentError(absl::StrCat("Client context must be no longer than ",
                                                   kLongestClientContext, " bytes, and has ", header.size()));
  }
  if (!absl::Base64Unescape(header, &json) || !CheckJson(json).ok() || !IsObject(json)) {
    return absl::InvalidArgumentError("Client context must be a valid Base64-encoded JSON object.");
  }
  return absl::OkStatus();
}

}  // namespace

class InvokeApi::Impl : public HttpHandler, public std::enable_shared_from_this<InvokeApi::Impl> {
 public:
  Impl(const HttpThreads& threads, const HttpThreads& accepting, Options options,
       std::weak_ptr<Invoker> invoker)
      : options_(std::move(options)),
        invoker_(std::move(invoker)),
        server_(std::make_shared<HttpServer>(threads, options_.limits, /*one_strand=*/false, &accepting)) {}

  absl::Status Listen(std::vector<UniqueFd> listeners) {
    for (UniqueFd& listener : listeners) {
      RK_RETURN_IF_ERROR(server_->Listen(std::move(listener), weak_from_this()));
    }
    return absl::OkStatus();
  }

  void TakeNoMore() {
    *ending_ = true;
    server_->FinishUp();
  }
  void AwaitAnswers(const Deadline& deadline) { server_->AwaitFinished(deadline); }
  void Close() { server_->Close(); }

  bool OnConnect(int socket, std::any& context, std::optional<HttpAnswer>& refusal) override {
    const Peer peer = PeerOf(socket);
    Connected connected;
    if (options_.identify) connected.identity = options_.identify(peer);
    if (options_.share_of) connected.caller = options_.share_of(peer, connected.identity);
    const std::string& caller = connected.caller;
    if (!caller.empty()) {
      const size_t most = options_.limits.connections_of_one;
      connected.share = connections_of_->Take(caller, 1, most);
      if (!connected.share) {
        Refused(connections_of_one_,
                absl::StrCat("a connection of ", caller, ", who has ", most, " already, was refused"));
        refusal = InvokeError(429, "TooManyRequestsException",
                              absl::StrCat("Too many connections: ", caller, " has ", most,
                                           ", which is all that one caller may have. Close some, or have the "
                                           "daemon allow more (rekindled --functions-connections-of-one)"));
        return false;
      }
    }
    context.emplace<Connected>(std::move(connected));
    return true;
  }

  Refusals refusals() const {
    return {connections_.load(), connections_of_one_.load(), bodies_.load(), bodies_of_one_.load(),
            too_large_.load()};
  }

  std::optional<HttpAnswer> TooManyConnections() override {
    Refused(connections_, absl::StrCat("a connection was refused: there are ", options_.limits.connections));
    return InvokeError(
        503, "ServiceUnavailableException",
        "Too many connections, of all callers together: try again, or have the daemon allow more "
        "(rekindled --functions-connections)");
  }

  // A node that is busy works: whoever asks (a load balancer) would take it out for that.
  std::optional<HttpAnswer> InsteadOfRefusal(const HttpRequestHead& head) override {
    if (RouteOf(head).call != Call::kHealth) return std::nullopt;
    return *ending_ ? Ending() : Healthy();
  }

  std::optional<HttpAnswer> OnHead(const std::shared_ptr<HttpConnection>&, const HttpRequestHead& head,
                                   size_t& largest_body) override {
    if (*ending_) return Ending();
    if (RouteOf(head).call == Call::kInvoke)
      largest_body = IsAsync(head) ? kLargestAsyncPayload : kLargestPayload;
    return std::nullopt;
  }

  HttpAnswer OnTooLarge(const std::shared_ptr<HttpConnection>&, const HttpRequestHead& head,
                        size_t largest_body) override {
    const Call call = RouteOf(head).call;
    if (call == Call::kUnknown) return UnknownOperation(head);
    ++too_large_;
    if (call != Call::kInvoke) {
      return InvokeError(413, "RequestTooLargeException",
                         absl::StrCat("A request to ", Path(head), " has no body"));
    }
    return InvokeError(413, "RequestTooLargeException",
                       absl::StrCat("Request must be smaller than ", largest_body,
                                    " bytes for the InvokeFunction operation"));
  }

  std::optional<HttpAnswer> OnBody(const std::shared_ptr<HttpConnection>& connection, size_t bytes,
                                   BodyRoom& room) override {
    const std::string& caller = std::any_cast<const Connected&>(connection->context()).caller;
    if (caller.empty()) return std::nullopt;
    const size_t most = options_.limits.bodies_of_one;
    room.held = bodies_of_->Take(caller, bytes, most);
    if (room.held) return std::nullopt;
    Refused(bodies_of_one_,
            absl::StrCat("a request of ", caller, ", whose requests that are being read have ",
                         FormatBytes(most), " already, was refused"));
    return InvokeError(
        429, "TooManyRequestsException",
        absl::StrCat("Too many large requests at a time: those of ", caller, " that are being read may have ",
                     FormatBytes(most), " together. Send fewer at once"));
  }

  HttpAnswer OnNoMemory(const std::shared_ptr<HttpConnection>&) override {
    Refused(bodies_, absl::StrCat("a request was refused: those that are being read have ",
                                  FormatBytes(options_.limits.bodies)));
    return InvokeError(503, "ServiceUnavailableException",
                       "Too many large requests at a time, of all callers together");
  }

  HttpAnswer OnBadRequest(const std::shared_ptr<HttpConnection>&, int status,
                          const std::string& why) override {
    if (status == 431) ++too_large_;
    return InvokeError(status, "InvalidRequestException", absl::StrCat("Not a request of HTTP/1.1: ", why));
  }

  void OnRequest(HttpExchange exchange, HttpRequest request) override {
    if (*ending_) return HttpConnection::Answer(exchange, Ending());  // its body has come meanwhile
    Route route = RouteOf(request);
    if (route.call == Call::kHealth) return HttpConnection::Answer(exchange, Healthy());
    if (route.call == Call::kUnknown) return HttpConnection::Answer(exchange, UnknownOperation(request));
    const Identity& identity = std::any_cast<const Connected&>(exchange.connection->context()).identity;
    if (!identity.ok()) return HttpConnection::Answer(exchange, InvokeErrorFrom(identity.status(), ""));
    std::shared_ptr<Invoker> invoker = invoker_.lock();
    if (!invoker)
      return HttpConnection::Answer(exchange, InvokeError(500, "ServiceException", "The service is ending"));
    if (route.call == Call::kList) return List(exchange, *invoker, *identity, request);

    absl::StatusOr<FunctionName> name = ParseFunctionName(route.function);
    if (!name.ok()) {
      return HttpConnection::Answer(exchange,
                                    InvokeError(400, "ValidationException", name.status().message()));
    }
    std::string qualifier = QueryParameter(request, "Qualifier");
    if (qualifier.empty()) qualifier = name->qualifier;
    std::string arn = absl::StrCat(options_.arn_prefix, name->name);
    if (!qualifier.empty() && qualifier != "$LATEST") {
      return HttpConnection::Answer(exchange, FunctionNotFound(absl::StrCat(arn, ":", qualifier)));
    }
    if (route.call != Call::kInvoke) return Get(exchange, *invoker, *identity, route.call, name->name, arn);
    Invoke(exchange, *invoker, *identity, std::move(name->name), std::move(arn), request);
  }

  void OnClosed(HttpConnection&, bool) override {}

 private:
  static HttpAnswer Healthy() { return HttpAnswer(200, R"({"status":"ok"})"); }

  static HttpAnswer UnknownOperation(const HttpRequestHead& head) {
    return InvokeError(404, "UnknownOperationException",
                       absl::StrCat("There is no ", View(head.method_string()), " ", Path(head)));
  }

  static HttpAnswer Ending() {
    return std::move(InvokeError(503, "ServiceUnavailableException",
                                 "The daemon is ending. Try again when it has been started anew")
                         .Close());
  }

  // In the log less and less often.
  static void Refused(std::atomic<uint64_t>& count, const std::string& what) {
    const uint64_t refused = ++count;
    if ((refused & (refused - 1)) != 0) return;
    Log(LogLevel::kWarning,
        absl::StrCat("HTTP for functions: ", what, "; ", refused, " until now, of all callers"));
  }

  void Invoke(const HttpExchange& exchange, Invoker& invoker, const std::any& identity, std::string function,
              std::string arn, HttpRequest& request) {
    InvokeRequest invoke;
    invoke.request_id = NewRequestId();
    auto refuse = [&](HttpAnswer answer) {
      answer.Add("x-amzn-RequestId", invoke.request_id);
      HttpConnection::Answer(exchange, std::move(answer));
    };
    absl::string_view type = Header(request, "X-Amz-Invocation-Type");
    invoke.async = type == "Event";
    invoke.dry_run = type == "DryRun";
    if (!type.empty() && type != "RequestResponse" && !invoke.async && !invoke.dry_run) {
      return refuse(InvokeError(400, "InvalidParameterValueException",
                                absl::StrCat("Unsupported invocation type: ", type)));
    }
    invoke.payload = std::move(request.body());
    if (invoke.payload.empty()) {
      invoke.payload = "{}";
    } else if (absl::Status json = CheckJson(invoke.payload); !json.ok()) {
      return refuse(InvokeError(400, "InvalidRequestContentException",
                                absl::StrCat("Could not parse request body into json: ", json.message())));
    }
    if (absl::Status taken =
            TakeClientContext(Header(request, "X-Amz-Client-Context"), invoke.client_context);
        !taken.ok()) {
      return refuse(InvokeError(400, "InvalidRequestContentException", taken.message()));
    }
    invoke.identity = identity;
    invoke.function = std::move(function);
    invoke.trace_id = std::string(Header(request, "X-Amzn-Trace-Id"));
    invoke.tail_log = !invoke.async && Header(request, "X-Amz-Log-Type") == "Tail";

    // Weakly: a caller that has gone needs no answer.
    const std::weak_ptr<HttpConnection> caller = exchange.connection;
    if (!invoke.async) invoke.gone = [caller] { return caller.expired(); };
    auto done = [connection = caller, number = exchange.number, arn = std::move(arn), async = invoke.async,
                 dry_run = invoke.dry_run, tail_log = invoke.tail_log, request_id = invoke.request_id,
                 trace_id = invoke.trace_id, ending = ending_](absl::StatusOr<InvokeResult> result) {
      const bool ended = *ending && absl::IsUnavailable(result.status());
      HttpAnswer answer = ended          ? Ending()
                          : !result.ok() ? InvokeErrorFrom(result.status(), arn)
                          : async        ? HttpAnswer(202)
                          : dry_run      ? HttpAnswer(204)
                                         : Result(*std::move(result), tail_log);
      answer.Add("x-amzn-RequestId", request_id);
      if (!trace_id.empty()) answer.Add("X-Amzn-Trace-Id", trace_id);
      HttpConnection::Answer(connection, number, std::move(answer));
    };
    invoker.Invoke(std::move(invoke), std::move(done));
  }

  static HttpAnswer Result(InvokeResult result, bool tail_log) {
    HttpAnswer answer(200);
    if (!result.function_error.empty()) answer.Add("X-Amz-Function-Error", result.function_error);
    answer.Add("X-Amz-Executed-Version", result.executed_version);
    if (tail_log) {
      absl::string_view tail = result.log_tail;
      tail.remove_prefix(tail.size() - std::min(tail.size(), kLogTail));
      answer.Add("X-Amz-Log-Result", absl::Base64Escape(tail));
    }
    answer.SetBody(std::move(result.payload), result.content_type);
    return answer;
  }

  void List(const HttpExchange& exchange, Invoker& invoker, const std::any& identity,
            const HttpRequestHead& head) {
    absl::StatusOr<std::vector<ListedFunction>> functions = invoker.List(identity);
    if (!functions.ok()) return HttpConnection::Answer(exchange, InvokeErrorFrom(functions.status(), ""));
    int most = kMostListed;
    std::string asked = QueryParameter(head, "MaxItems");
    if (!asked.empty() && (!absl::SimpleAtoi(asked, &most) || most < 1)) {
      return HttpConnection::Answer(
          exchange, InvokeError(400, "InvalidParameterValueException",
                                absl::StrCat("MaxItems is ", asked, ", not a number above 0")));
    }
    most = std::min(most, kMostListed);
    HttpConnection::Answer(
        exchange, HttpAnswer(200, FunctionsPage(*functions, options_.arn_prefix,
                                                QueryParameter(head, "Marker"), static_cast<size_t>(most))));
  }

  void Get(const HttpExchange& exchange, Invoker& invoker, const std::any& identity, Call call,
           const std::string& name, const std::string& arn) {
    absl::StatusOr<std::vector<ListedFunction>> functions = invoker.List(identity);
    if (!functions.ok()) return HttpConnection::Answer(exchange, InvokeErrorFrom(functions.status(), arn));
    auto function = std::find_if(functions->begin(), functions->end(),
                                 [&](const ListedFunction& listed) { return listed.name == name; });
    if (function == functions->end()) return HttpConnection::Answer(exchange, FunctionNotFound(arn));
    std::string configuration = FunctionConfiguration(*function, options_.arn_prefix);
    if (call == Call::kGet)
      configuration = absl::StrCat(R"({"Configuration":)", configuration, R"(,"Tags":{}})");
    HttpConnection::Answer(exchange, HttpAnswer(200, std::move(configuration)));
  }

  const Options options_;
  const std::weak_ptr<Invoker> invoker_;
  const std::shared_ptr<Shares> connections_of_ = std::make_shared<Shares>();
  const std::shared_ptr<Shares> bodies_of_ = std::make_shared<Shares>();
  // Also for invocations that outlive this.
  const std::shared_ptr<std::atomic<bool>> ending_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<uint64_t> connections_{0}, connections_of_one_{0}, bodies_{0}, bodies_of_one_{0}, too_large_{0};
  const std::shared_ptr<HttpServer> server_;
};

InvokeApi::InvokeApi(std::unique_ptr<HttpThreads> accepting, std::shared_ptr<Impl> impl)
    : accepting_(std::move(accepting)), impl_(std::move(impl)) {}
InvokeApi::~InvokeApi() { impl_->Close(); }

absl::StatusOr<std::unique_ptr<InvokeApi>> InvokeApi::Start(HttpThreads& threads,
                                                            std::vector<UniqueFd> listeners, Options options,
                                                            std::weak_ptr<Invoker> invoker) {
  auto accepting = std::make_unique<HttpThreads>(static_cast<int>(listeners.size()));
  auto impl = std::make_shared<Impl>(threads, *accepting, std::move(options), std::move(invoker));
  // Also what has begun is closed when a later one fails.
  std::unique_ptr<InvokeApi> api(new InvokeApi(std::move(accepting), impl));
  RK_RETURN_IF_ERROR(impl->Listen(std::move(listeners)));
  return api;
}

InvokeApi::Refusals InvokeApi::refusals() const { return impl_->refusals(); }

void InvokeApi::TakeNoMore() { impl_->TakeNoMore(); }

void InvokeApi::AwaitAnswers(const Deadline& deadline) { impl_->AwaitAnswers(deadline); }

void InvokeApi::Close() { impl_->Close(); }

}  // namespace rekindle::functions
