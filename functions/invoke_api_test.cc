#include "functions/invoke_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "functions/invoke_api_for_tests.h"
#include "nlohmann/json.hpp"

namespace rekindle::functions {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::string_view kArn = "arn:aws:lambda:us-east-1:000000000000:function:";

INSTANTIATE_TEST_SUITE_P(Sockets, InvokeApiTest, ::testing::Values(TestAddress::kUnix, TestAddress::kTcp),
                         [](const auto& kind) { return kind.param == TestAddress::kUnix ? "Unix" : "Tcp"; });

TEST_P(InvokeApiTest, AnInvocationHasWhatTheCallerGave) {
  Start();
  HttpClient client(address_);
  HttpReply reply = client.Post(
      InvokePath("resize"), R"({"width": 7})",
      absl::StrCat("X-Amz-Client-Context: ", absl::Base64Escape(R"({"custom":{"k":"ü"}})"),
                   "\r\nX-Amzn-Trace-Id: Root=1-2\r\nAuthorization: AWS4-HMAC-SHA256 Credential=x\r\n"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, R"({"width": 7})");
  InvokeRequest seen = invoker_->last();
  EXPECT_EQ(seen.function, "resize");
  EXPECT_EQ(seen.payload, R"({"width": 7})");
  EXPECT_EQ(seen.client_context, R"({"custom":{"k":"ü"}})");
  EXPECT_EQ(seen.trace_id, "Root=1-2");
  EXPECT_FALSE(seen.async || seen.dry_run || seen.tail_log || seen.identity.has_value());
  EXPECT_THAT(seen.request_id,
              ::testing::MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"));
  EXPECT_EQ(reply.headers["x-amzn-requestid"], seen.request_id);
  EXPECT_EQ(reply.headers["x-amzn-trace-id"], "Root=1-2");
  EXPECT_EQ(reply.headers["x-amz-executed-version"], "$LATEST");
  EXPECT_EQ(reply.headers["content-type"], "application/json");
  EXPECT_EQ(reply.headers.count("x-amz-function-error"), 0u);
  EXPECT_EQ(reply.headers.count("x-amz-log-result"), 0u);

  EXPECT_EQ(client.Post(InvokePath("resize"), "").body, "{}");
  EXPECT_NE(invoker_->last().request_id, seen.request_id);
}

TEST_P(InvokeApiTest, NamesOfFunctions) {
  Start();
  HttpClient client(address_);
  for (absl::string_view name :
       {"resize", "resize:$LATEST", "resize%3A%24LATEST", "000000000000:function:resize",
        "arn%3Aaws%3Alambda%3Aeu-west-1%3A123456789012%3Afunction%3Aresize"}) {
    EXPECT_EQ(client.Post(InvokePath(name), "1").status, 200) << name;
    EXPECT_EQ(invoker_->last().function, "resize");
  }
  EXPECT_EQ(client.Post(absl::StrCat(InvokePath("resize"), "?Qualifier=%24LATEST"), "1").status, 200);
  for (absl::string_view path : {"resize:7/invocations", "resize/invocations?Qualifier=7"}) {
    HttpReply reply = client.Post(absl::StrCat("/2015-03-31/functions/", path), "1");
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_EQ(json::parse(reply.body)["Message"], absl::StrCat("Function not found: ", kArn, "resize:7"));
  }
  for (absl::string_view name : {"a%20b", "a%2Fb", "..", "%00", "a:b:c"}) {
    HttpReply reply = client.Post(InvokePath(name), "1");
    EXPECT_EQ(reply.status, 400) << name;
    EXPECT_EQ(reply.headers["x-amzn-errortype"], "ValidationException");
  }
}

TEST_P(InvokeApiTest, KindsOfInvocations) {
  Start();
  HttpClient client(address_);
  HttpReply reply = client.Post(InvokePath("f"), "1", "X-Amz-Invocation-Type: Event\r\n");
  EXPECT_EQ(reply.status, 202);
  EXPECT_EQ(reply.body, "");
  EXPECT_TRUE(invoker_->last().async);
  EXPECT_EQ(reply.headers["x-amzn-requestid"], invoker_->last().request_id);
  reply = client.Post(InvokePath("f"), "1", "X-Amz-Invocation-Type: DryRun\r\n");
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.headers.count("content-length"), 0u);
  EXPECT_TRUE(invoker_->last().dry_run);
  EXPECT_EQ(client.Post(InvokePath("f"), "1", "X-Amz-Invocation-Type: RequestResponse\r\n").body, "1");
  reply = client.Post(InvokePath("f"), "1", "X-Amz-Invocation-Type: Sometimes\r\n");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.headers["x-amzn-errortype"], "InvalidParameterValueException");
}

TEST_P(InvokeApiTest, TheEndOfTheLog) {
  Start();
  invoker_->Become([](InvokeRequest, Invoker::Done done) {
    InvokeResult result;
    result.payload = "1";
    result.log_tail = std::string(5000, 'a') + "END\n";
    done(std::move(result));
  });
  HttpClient client(address_);
  HttpReply reply = client.Post(InvokePath("f"), "1", "X-Amz-Log-Type: Tail\r\n");
  std::string log;
  EXPECT_TRUE(absl::Base64Unescape(reply.headers["x-amz-log-result"], &log));
  EXPECT_EQ(log, std::string(4092, 'a') + "END\n");
  EXPECT_TRUE(invoker_->last().tail_log);
  reply = client.Post(InvokePath("f"), "1", "X-Amz-Log-Type: None\r\n");
  EXPECT_EQ(reply.headers.count("x-amz-log-result"), 0u);
}

TEST_P(InvokeApiTest, AFunctionThatFails) {
  Start();
  invoker_->Become([](InvokeRequest, Invoker::Done done) {
    InvokeResult result;
    result.payload = R"({"errorType":"KeyError"})";
    result.function_error = "Unhandled";
    done(std::move(result));
  });
  HttpClient client(address_);
  HttpReply reply = client.Post(InvokePath("f"), "1");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers["x-amz-function-error"], "Unhandled");
  EXPECT_EQ(reply.body, R"({"errorType":"KeyError"})");
}

TEST_P(InvokeApiTest, ErrorsOfTheInvokerAreLambdas) {
  Start();
  HttpClient client(address_);
  struct {
    absl::StatusCode code;
    int status;
    const char* type;
  } cases[] = {
      {absl::StatusCode::kNotFound, 404, "ResourceNotFoundException"},
      {absl::StatusCode::kInvalidArgument, 400, "InvalidParameterValueException"},
      {absl::StatusCode::kResourceExhausted, 429, "TooManyRequestsException"},
      {absl::StatusCode::kPermissionDenied, 403, "AccessDeniedException"},
      {absl::StatusCode::kUnauthenticated, 403, "AccessDeniedException"},
      {absl::StatusCode::kFailedPrecondition, 409, "ResourceConflictException"},
      {absl::StatusCode::kUnavailable, 500, "ServiceException"},
      {absl::StatusCode::kInternal, 500, "ServiceException"},
  };
  for (const auto& [code, status, type] : cases) {
    invoker_->Become([code = code](InvokeRequest, Invoker::Done done) {
      done(absl::Status(code,
                        "be\xff"
                        "cause"));
    });
    HttpReply reply = client.Post(InvokePath("f"), "1");
    EXPECT_EQ(reply.status, status) << type;
    EXPECT_EQ(reply.headers["x-amzn-errortype"], type);
    EXPECT_EQ(reply.headers["x-amzn-requestid"], invoker_->last().request_id);
    json error = json::parse(reply.body);
    EXPECT_EQ(error["Type"], status == 500 ? "Service" : "User");
    if (status == 404) {
      EXPECT_EQ(error["Message"], absl::StrCat("Function not found: ", kArn, "f"));
    } else {
      EXPECT_EQ(error["Message"],
                "be\xef\xbf\xbd"
                "cause");
    }
  }
}

TEST_P(InvokeApiTest, PayloadsThatAreNoJson) {
  Start();
  invoker_->Become([](InvokeRequest, Invoker::Done) { FAIL(); });
  HttpClient client(address_);
  for (absl::string_view payload : {"{", "hello", "{} {}", "\xff"}) {
    HttpReply reply = client.Post(InvokePath("f"), payload);
    EXPECT_EQ(reply.status, 400) << payload;
    EXPECT_EQ(reply.headers["x-amzn-errortype"], "InvalidRequestContentException");
    EXPECT_THAT(std::string(json::parse(reply.body)["Message"]),
                StartsWith("Could not parse request body into json: parse error at byte "));
  }
  for (std::string context :
       {std::string("%%%"), absl::Base64Escape("{"), absl::Base64Escape("[{}]"), std::string(4000, 'A')}) {
    HttpReply reply =
        client.Post(InvokePath("f"), "1", absl::StrCat("X-Amz-Client-Context: ", context, "\r\n"));
    EXPECT_EQ(reply.status, 400) << context;
    EXPECT_THAT(reply.body, HasSubstr("Client context must be"));
  }
}

TEST_P(InvokeApiTest, PayloadsMayBeAsLargeAsOnLambdaAndNoLarger) {
  Start();
  for (auto [type, most] :
       {std::pair("RequestResponse", kLargestPayload), std::pair("Event", kLargestAsyncPayload)}) {
    std::string headers = absl::StrCat("X-Amz-Invocation-Type: ", type, "\r\n");
    std::string payload = absl::StrCat("\"", std::string(most - 2, 'x'), "\"");
    HttpClient client(address_);
    HttpReply reply = client.Post(InvokePath("f"), payload, headers);
    EXPECT_TRUE(reply.status == 200 || reply.status == 202) << reply.status;
    EXPECT_EQ(invoker_->last().payload, payload);
    reply = client.Post(InvokePath("f"), payload + " ", headers);
    EXPECT_EQ(reply.status, 413);
    EXPECT_EQ(reply.headers["x-amzn-errortype"], "RequestTooLargeException");
    EXPECT_EQ(json::parse(reply.body)["Message"],
              absl::StrCat("Request must be smaller than ", most, " bytes for the InvokeFunction operation"));
    EXPECT_TRUE(client.ReadEnd());
  }
  EXPECT_EQ(api_->refusals().too_large, 2u);
}

TEST_P(InvokeApiTest, ResultsFromOtherThreadsInAnyOrder) {
  Start();
  absl::Mutex mutex;
  std::vector<std::pair<std::string, Invoker::Done>> open;
  invoker_->Become([&](InvokeRequest request, Invoker::Done done) {
    absl::MutexLock lock(&mutex);
    open.emplace_back(std::move(request.payload), std::move(done));
  });
  std::vector<HttpClient> clients;
  for (int i = 0; i < 10; ++i) {
    clients.emplace_back(address_);
    clients.back().Send(absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\nContent-Length: 1\r\n\r\n", i));
  }
  std::thread answering([&] {
    absl::MutexLock lock(&mutex);
    auto all = [&] { return open.size() == 10; };
    mutex.Await(absl::Condition(&all));
    for (auto it = open.rbegin(); it != open.rend(); ++it) {
      it->second(ResultOf(it->first));
      it->second(absl::InternalError("a second time"));
    }
  });
  for (int i = 0; i < 10; ++i) EXPECT_EQ(clients[i].Read().body, absl::StrCat(i));
  answering.join();
  // The second calls were for nothing, also for the connections' next requests.
  invoker_->Become([](InvokeRequest, Invoker::Done done) { done(absl::NotFoundError("")); });
  for (HttpClient& client : clients) EXPECT_EQ(client.Post(InvokePath("f"), "1").status, 404);
}

TEST_P(InvokeApiTest, ResultsMayBeGivenWithLocksHeld) {
  Start();
  absl::Mutex mutex;
  std::vector<Invoker::Done> open;
  invoker_->Become([&](InvokeRequest, Invoker::Done done) {
    absl::MutexLock lock(&mutex);
    open.push_back(std::move(done));
  });
  HttpClient client(address_);
  std::string request = absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\nContent-Length: 1\r\n\r\n1");
  client.Send(request + request + request);
  for (int i = 0; i < 3; ++i) {
    absl::MutexLock lock(&mutex);
    auto invoked = [&] { return !open.empty(); };
    mutex.Await(absl::Condition(&invoked));
    open.back()(ResultOf("7"));
    open.clear();
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.Read().body, "7");
}

TEST_P(InvokeApiTest, AResultMayComeWhenAllHaveGone) {
  Start();
  std::promise<void> invoked;
  Invoker::Done kept;
  invoker_->Become([&](InvokeRequest, Invoker::Done done) {
    kept = std::move(done);
    invoked.set_value();
  });
  HttpClient client(address_);
  client.Send(absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\nContent-Length: 1\r\n\r\n1"));
  invoked.get_future().wait();
  client.Close();
  api_.reset();
  threads_.reset();
  kept(InvokeResult{});
}

TEST_P(InvokeApiTest, TheListOfFunctions) {
  for (int i = 0; i < 120; ++i) {
    ListedFunction function;
    function.name = absl::StrCat("f", 100 + i);
    function.runtime = "python3.11";
    function.handler = "app.handler";
    function.memory_mib = 128;
    function.timeout = absl::Seconds(3);
    function.last_modified = absl::FromUnixMillis(1700000000123);
    invoker_->listed.push_back(function);
  }
  Start();
  HttpClient client(address_);
  std::vector<std::string> names;
  std::vector<size_t> sizes;
  std::string marker;
  do {
    json page =
        json::parse(client.Get(absl::StrCat("/2015-03-31/functions/?MaxItems=50&Marker=", marker)).body);
    sizes.push_back(page["Functions"].size());
    for (const json& function : page["Functions"]) names.push_back(function["FunctionName"]);
    marker = page["NextMarker"].is_null() ? "" : page["NextMarker"];
  } while (!marker.empty());
  EXPECT_THAT(sizes, ElementsAre(50, 50, 20));
  EXPECT_EQ(names.front(), "f100");
  EXPECT_EQ(names.back(), "f219");
  json first = json::parse(client.Get("/2015-03-31/functions?MaxItems=1").body)["Functions"][0];
  EXPECT_EQ(first["FunctionArn"], absl::StrCat(kArn, "f100"));
  EXPECT_EQ(first["Timeout"], 3);
  EXPECT_EQ(first["LastModified"], "2023-11-14T22:13:20.123+0000");
  EXPECT_EQ(client.Get("/2015-03-31/functions/?MaxItems=0").status, 400);

  EXPECT_EQ(json::parse(client.Get("/2015-03-31/functions/f107").body)["Configuration"]["FunctionName"],
            "f107");
  EXPECT_EQ(json::parse(client.Get("/2015-03-31/functions/f107/configuration").body)["FunctionName"], "f107");
  HttpReply unknown = client.Get("/2015-03-31/functions/g");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.headers["x-amzn-errortype"], "ResourceNotFoundException");
}

TEST_P(InvokeApiTest, WhatIsNoCallIsRefused) {
  Start();
  for (absl::string_view request :
       {"GET / HTTP/1.1\r\n\r\n", "PUT /2015-03-31/functions/f HTTP/1.1\r\n\r\n",
        "POST /2015-03-31/functions/ HTTP/1.1\r\n\r\n", "POST /2015-03-31/functions/f HTTP/1.1\r\n\r\n",
        "POST /2015-03-31/functionsf/invocations HTTP/1.1\r\n\r\n",
        "POST /2021-11-15/functions/f/response-streaming-invocations HTTP/1.1\r\n\r\n",
        "POST /2021-11-15/functions/f/response-streaming-invocations HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        "POST /2015-03-31/functions/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"}) {
    HttpClient client(address_);
    HttpReply reply = client.Ask(request);
    EXPECT_EQ(reply.status, 404) << request;
    EXPECT_EQ(reply.headers["x-amzn-errortype"], "UnknownOperationException") << request;
  }
  EXPECT_EQ(HttpClient(address_).Ask("GET http://h HTTP/1.1\r\n\r\n").status, 404);
  EXPECT_EQ(HttpClient(address_).Ask("GET /health HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}").status, 413);
  HttpClient garbage(address_);
  EXPECT_EQ(garbage.Ask("hello\r\n\r\n").status, 400);
}

// Whatever stands between client and daemon may see another end of such a body than the daemon does.
TEST_P(InvokeApiTest, ABodyOfUnknownCodingIsNotTheNextRequest) {
  Start();
  const std::string smuggled =
      absl::StrCat("POST ", InvokePath("smuggled"), " HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}");
  const auto ask = [&](absl::string_view version, absl::string_view headers) {
    HttpClient client(address_);
    EXPECT_TRUE(
        client.Send(absl::StrCat("POST ", InvokePath("f"), " ", version, "\r\n", headers, "\r\n", smuggled)));
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.headers.count("x-amz-executed-version"), 0u) << headers;
    EXPECT_TRUE(client.ReadEnd()) << headers;
    return reply.status;
  };
  for (absl::string_view codings :
       {"gzip", "identity", "xchunked", "\"chunked\"", "chunked, chunked", "", "gzip, chunked", "chunked;q=1",
        "chunked\r\nTransfer-Encoding: chunked"}) {
    EXPECT_THAT(ask("HTTP/1.1", absl::StrCat("Transfer-Encoding: ", codings, "\r\n")),
                ::testing::AnyOf(400, 501))
        << codings;
  }
  EXPECT_THAT(ask("HTTP/1.1", "Content-Length: 0\r\nTransfer-Encoding: gzip\r\n"),
              ::testing::AnyOf(400, 501));
  EXPECT_EQ(ask("HTTP/1.0", "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(invoker_->last().function, "");
  HttpClient client(address_);
  EXPECT_EQ(client
                .Ask(absl::StrCat("POST ", InvokePath("f"),
                                  " HTTP/1.1\r\nTransfer-Encoding: \tChunked \r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
                .status,
            200);
}

TEST_P(InvokeApiTest, HeadIsGetWithoutTheBody) {
  Start();
  HttpClient client(address_);
  client.Send("HEAD /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n");
  HttpReply head = client.Read(/*to_head=*/true), get = client.Read();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(get.status, 200);
  EXPECT_EQ(head.headers["content-length"], absl::StrCat(get.body.size()));
}

// As proxies send them, and clients that take this for one.
TEST_P(InvokeApiTest, ARequestMayNameTheWholeUrl) {
  Start();
  HttpClient client(address_);
  for (absl::string_view root : {"http://127.0.0.1:9001", "HTTPS://functions.example"}) {
    EXPECT_EQ(client.Post(absl::StrCat(root, InvokePath("f"), "?Qualifier=$LATEST"), "1").status, 200)
        << root;
    EXPECT_EQ(client.Get(absl::StrCat(root, "/health?at=http://h/x")).status, 200) << root;
  }
}

TEST_P(InvokeApiTest, TheInvokerMayGoFirst) {
  Start();
  invoker_.reset();
  HttpClient client(address_);
  HttpReply reply = client.Post(InvokePath("f"), "1");
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(reply.headers["x-amzn-errortype"], "ServiceException");
}

TEST_P(InvokeApiTest, OneThatEndsAnswersWhatIsInWorkAndTakesNoMore) {
  Start();
  std::promise<Invoker::Done> begun[3];
  std::atomic<int> calls{0};
  invoker_->Become([&](InvokeRequest, Invoker::Done done) { begun[calls++].set_value(std::move(done)); });
  HttpClient fresh(address_), in_work(address_), cut_off(address_), idle(address_), sending(address_);
  EXPECT_EQ(idle.Get("/health").status, 200);
  ASSERT_TRUE(in_work.Send(
      absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")));
  Invoker::Done answers = begun[0].get_future().get();
  ASSERT_TRUE(cut_off.Send(
      absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")));
  Invoker::Done gives_up = begun[1].get_future().get();
  EXPECT_EQ(
      sending
          .Ask(absl::StrCat("POST ", InvokePath("f"),
                            " HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"))
          .status,
      100);
  api_->TakeNoMore();
  EXPECT_TRUE(idle.ReadEnd());
  for (HttpReply reply : {HttpClient(address_).Post(InvokePath("f"), "{}"),
                          HttpClient(address_).Get("/health"), sending.Ask("{}"), fresh.Get("/health")}) {
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.headers["x-amzn-errortype"], "ServiceUnavailableException");
    EXPECT_EQ(reply.headers["connection"], "close");
  }
  EXPECT_EQ(calls, 2);
  std::atomic<bool> through{false};
  std::thread waits([&] {
    api_->AwaitAnswers(Deadline(absl::Minutes(1)));
    through = true;
  });
  answers(ResultOf("1"));
  HttpReply reply = in_work.Read();
  EXPECT_EQ(reply.body, "1");
  EXPECT_EQ(reply.headers["connection"], "close");
  EXPECT_TRUE(in_work.ReadEnd());
  EXPECT_FALSE(through);
  gives_up(absl::UnavailableError("the daemon is ending"));
  EXPECT_EQ(cut_off.Read().status, 503);
  waits.join();  // although neither client has closed its end
}

TEST_P(InvokeApiTest, CloseEndsConnections) {
  Start();
  HttpClient client(address_);
  EXPECT_EQ(client.Get("/health").status, 200);
  api_->Close();
  EXPECT_TRUE(client.ReadEnd());
}

TEST(InvokeApiStartTest, SeveralListeners) {
  HttpThreads threads;
  TestAddress local(TestAddress::kUnix), tcp(TestAddress::kTcp);
  std::vector<UniqueFd> listeners;
  listeners.push_back(local.TakeListener());
  listeners.push_back(tcp.TakeListener());
  auto invoker = std::make_shared<TestInvoker>();
  auto api = InvokeApi::Start(threads, std::move(listeners), {}, invoker);
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_EQ(HttpClient(local).Post(InvokePath("f"), "1").status, 200);
  EXPECT_EQ(HttpClient(tcp).Post(InvokePath("f"), "1").status, 200);

  TestAddress good(TestAddress::kTcp);
  std::vector<UniqueFd> one_bad;
  one_bad.push_back(good.TakeListener());
  one_bad.push_back(tcp.Connect());
  EXPECT_EQ(InvokeApi::Start(threads, std::move(one_bad), {}, invoker).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rekindle::functions
