#include "daemon/metrics_http.h"

#include <any>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "functions/http_connection.h"
#include "functions/http_handler.h"
#include "functions/http_server.h"
#include "functions/http_threads.h"

namespace rekindle::daemon {
namespace {

using functions::HttpAnswer;
using functions::HttpConnection;
using functions::HttpExchange;
using functions::HttpRequest;
using functions::HttpRequestHead;

constexpr absl::string_view kMetricsFormat = "text/plain; version=0.0.4; charset=utf-8";
constexpr absl::string_view kPlain = "text/plain; charset=utf-8";

HttpAnswer Plain(int status, std::string text) {
  HttpAnswer answer(status);
  answer.SetBody(std::move(text), kPlain);
  return answer;
}

class Handler final : public functions::HttpHandler {
 public:
  explicit Handler(std::function<std::string()> text) : text_(std::move(text)) {}

  bool OnConnect(int, std::any&, std::optional<HttpAnswer>&) override { return true; }
  std::optional<HttpAnswer> TooManyConnections() override { return Plain(503, "too many connections\n"); }
  std::optional<HttpAnswer> OnHead(const std::shared_ptr<HttpConnection>&, const HttpRequestHead& head,
                                   size_t& largest_body) override {
    largest_body = 0;
    if (functions::Path(head) != "/metrics") return Plain(404, "it is /metrics that is here\n");
    if (functions::View(head.method_string()) != "GET") return Plain(405, "use GET\n");
    return std::nullopt;
  }
  HttpAnswer OnTooLarge(const std::shared_ptr<HttpConnection>&, const HttpRequestHead&, size_t) override {
    return Plain(413, "send no body\n");
  }
  HttpAnswer OnNoMemory(const std::shared_ptr<HttpConnection>&) override { return Plain(503, "no memory\n"); }
  HttpAnswer OnBadRequest(const std::shared_ptr<HttpConnection>&, int status,
                          const std::string& why) override {
    return Plain(status, why + "\n");
  }
  void OnRequest(HttpExchange exchange, HttpRequest) override {
    HttpAnswer answer(200);
    answer.SetBody(text_(), kMetricsFormat);
    HttpConnection::Answer(exchange, std::move(answer));
  }
  void OnClosed(HttpConnection&, bool) override {}

 private:
  const std::function<std::string()> text_;
};

class MetricsServer final : public MetricsHttp {
 public:
  explicit MetricsServer(std::function<std::string()> text)
      : handler_(std::make_shared<Handler>(std::move(text))),
        server_(std::make_shared<functions::HttpServer>(threads_, functions::HttpLimits(),
                                                        /*one_strand=*/true)) {}
  ~MetricsServer() override { server_->Close(); }

  absl::Status Listen(UniqueFd listener) { return server_->Listen(std::move(listener), handler_); }

 private:
  // Its own: an answer takes a while, and reads files.
  functions::HttpThreads threads_{1};
  const std::shared_ptr<Handler> handler_;
  const std::shared_ptr<functions::HttpServer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Start(UniqueFd listener,
                                                                std::function<std::string()> text) {
  auto server = std::make_unique<MetricsServer>(std::move(text));
  RK_RETURN_IF_ERROR(server->Listen(std::move(listener)));
  return server;
}

}  // namespace rekindle::daemon
