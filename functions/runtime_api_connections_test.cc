// Connections, and what comes over them that is no proper call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "functions/http_client_for_tests.h"
#include "functions/runtime_api.h"
#include "functions/runtime_api_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A server that does not see a client's end fails a test instead of keeping it for ever.
constexpr absl::Duration kSeesTheEndWithin = absl::Minutes(1);

class RuntimeApiConnectionsTest : public RuntimeApiFixture {
 protected:
  // What the servers with these have at a time is one owner's.
  static RuntimeApi::Options WithBodiesOfOwner(size_t bytes) {
    RuntimeApi::Options options;
    options.bodies = std::make_shared<Shares>();
    options.owner = "alice";
    options.bodies_of_owner = bytes;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Sockets, RuntimeApiConnectionsTest,
                         ::testing::Values(TestAddress::kUnix, TestAddress::kTcp), NameOfSocket);

TEST_P(RuntimeApiConnectionsTest, WhatIsNoCallIsRefused) {
  Start();
  struct {
    std::string request;
    int status;
  } cases[] = {
      {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", 404},
      {"GET /2018-06-01/runtime/ HTTP/1.1\r\nHost: h\r\n\r\n", 404},
      {"POST /2018-06-01/runtime/invocation/next HTTP/1.1\r\nContent-Length: 2\r\n\r\nab", 404},
      {"GET /2018-06-01/runtime/invocation/x/response HTTP/1.1\r\n\r\n", 404},
      {"POST /2018-06-01/runtime/invocation/x HTTP/1.1\r\n\r\n", 404},
      {"POST /2018-06-01/runtime/invocation/x/response/y HTTP/1.1\r\n\r\n", 404},
      {"DELETE /2018-06-01/runtime/invocation/next HTTP/1.1\r\n\r\n", 404},
      {"GET /2019-01-01/runtime/invocation/next HTTP/1.1\r\n\r\n", 404},
      {"GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", 413},
      {"POST /2018-06-01/runtime/init/error HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413},
      {"POST /2018-06-01/runtime/init/error HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n", 413},
      {"POST /2018-06-01/runtime/init/error HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /2018-06-01/runtime/init/error HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
      {"POST /2018-06-01/runtime/init/error HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST /2018-06-01/runtime/init/error HTTP/1.1\r\nTransfer-Encoding: "
       "chunked\r\n\r\nffffffffffffffff\r\n",
       413},
      {"POST /2018-06-01/runtime/init/error HTTP/1.1\r\nTransfer-Encoding: "
       "chunked\r\n\r\nfffffffffffffffff\r\n",
       400},
      {"POST /2018-06-01/runtime/init/error HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcdef\r\n",
       400},
      {"GET /2018-06-01/runtime/invocation/next HTTP/2.0\r\n\r\n", 400},
      {"GET /2018-06-01/runtime/invocation/next\r\n\r\n", 400},
      {"\r\n\r\n\r\n\r\n", 400},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400},  // TLS
      {"GET /x HTTP/1.1\r\nA b: c\r\n\r\n", 400},
      {"GET /x HTTP/1.1\r\n: c\r\n\r\n", 400},
      {std::string("GET /\0 HTTP/1.1\r\n\r\n", 19), 400},
      {absl::StrCat("GET /x HTTP/1.1\r\nA: ", std::string(200'000, 'b'), "\r\n\r\n"), 431},
      {absl::StrCat("GET /", std::string(200'000, 'b'), " HTTP/1.1\r\n\r\n"), 431},
      {std::string(200'000, 'b'), 431},
  };
  for (const auto& [request, status] : cases) {
    HttpClient client(address_);
    HttpReply reply = client.Ask(request);
    EXPECT_EQ(reply.status, status) << absl::CHexEscape(request.substr(0, 100)) << "\n" << reply.body;
    EXPECT_THAT(reply.body, HasSubstr("errorType")) << request.substr(0, 100);
  }
  std::string id = Invoke("1");
  HttpClient runtime(address_);
  EXPECT_EQ(runtime.Get(kNext).body, "1");
  EXPECT_EQ(runtime.Post(ResponsePath(id), "").status, 202);
  EXPECT_THAT(recorder_->WaitForNotes(1), ElementsAre("ready"));
}

TEST_P(RuntimeApiConnectionsTest, ManyRequestsInOneWriteAreAnsweredInOrder) {
  Start();
  std::string id = Invoke("1");
  Invoke("2");
  HttpClient runtime(address_);
  runtime.Send(absl::StrCat(NextRequest(), "POST ", ResponsePath(id),
                            " HTTP/1.1\r\nContent-Length: 1\r\n\r\n7", NextRequest()));
  EXPECT_EQ(runtime.Read().body, "1");
  EXPECT_EQ(runtime.Read().status, 202);
  EXPECT_EQ(runtime.Read().body, "2");
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "GET /2018-06-01/runtime/restore/next HTTP/1.1\r\n\r\n";
  std::thread sending([&] { runtime.Send(many); });
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(runtime.Read().status, 200);
  sending.join();
}

TEST_P(RuntimeApiConnectionsTest, WhatFollowsAWaitingRequestWaits) {
  Start();
  HttpClient runtime(address_);
  runtime.Send(NextRequest());
  recorder_->WaitForNotes(1);
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "GET /2018-06-01/runtime/restore/next HTTP/1.1\r\n\r\n";
  std::thread sending([&] { runtime.Send(many); });
  Invoke("1");
  EXPECT_EQ(runtime.Read().body, "1");
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(runtime.Read().body, "{}");
  sending.join();
}

TEST_P(RuntimeApiConnectionsTest, Http10AndClosingConnections) {
  Start();
  for (auto [request, kept] :
       {std::pair("GET /2018-06-01/runtime/restore/next HTTP/1.0\r\n\r\n", false),
        std::pair("GET /2018-06-01/runtime/restore/next HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true),
        std::pair("GET /2018-06-01/runtime/restore/next HTTP/1.1\r\nConnection: close\r\n\r\n", false)}) {
    HttpClient runtime(address_);
    HttpReply reply = runtime.Ask(request);
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers["connection"], kept ? "keep-alive" : "close");
    if (kept) {
      EXPECT_EQ(runtime.Ask(request).status, 200);
    } else {
      EXPECT_TRUE(runtime.ReadEnd());
    }
  }
}

TEST_P(RuntimeApiConnectionsTest, ABodyThatWaitsToBeAskedForIsAskedFor) {
  Start();
  std::string id = Invoke("1");
  HttpClient runtime(address_);
  runtime.Get(kNext);
  runtime.Send(absl::StrCat("POST ", ResponsePath(id),
                            " HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"));
  EXPECT_EQ(runtime.Read().status, 100);
  runtime.Send("abc");
  EXPECT_EQ(runtime.Read().status, 202);
  EXPECT_EQ(recorder_->WaitForAnswer(1).second.body, "abc");
}

// All of an instance's connections could hold as much as one may.
TEST_P(RuntimeApiConnectionsTest, WhyItCouldNotStartComesOnOneConnection) {
  Start();
  HttpClient first(address_), second(address_);
  const std::string begun = "POST /2018-06-01/runtime/init/error HTTP/1.1\r\nContent-Length: 1000000\r\n";
  first.Send(begun + "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(first.Read().status, 100);
  EXPECT_EQ(second.Ask(begun + "\r\n").status, 403);
  first.Reset();
  int status = 0;
  const Deadline seen(kSeesTheEndWithin);
  do {  // until the server has seen the end
    status = HttpClient(address_).Post("/2018-06-01/runtime/init/error", "{}").status;
  } while (status == 403 && !seen.passed());
  EXPECT_EQ(status, 202);
  EXPECT_EQ(HttpClient(address_).Ask(begun + "\r\n").status, 403) << "at once, not when it has sent it all";
  EXPECT_EQ(HttpClient(address_).Post("/2018-06-01/runtime/init/error", "{}").status, 403);
}

TEST_P(RuntimeApiConnectionsTest, BodiesOfOneOwnersInstancesHaveNoMoreThanTheirShare) {
  const RuntimeApi::Options options = WithBodiesOfOwner(1000);
  Start(options);
  TestAddress address(GetParam());
  auto recorder = std::make_shared<Recorder>();
  auto neighbour = RuntimeApi::Start(threads_, address.TakeListener(), options, recorder);
  ASSERT_TRUE(neighbour.ok()) << neighbour.status();
  HttpClient one(address_), other(address);
  const std::string id = Invoke("1");
  one.Get(kNext);
  one.Send(absl::StrCat("POST ", ResponsePath(id),
                        " HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 800\r\n\r\n"));
  EXPECT_EQ(one.Read().status, 100);
  EXPECT_EQ(other.Post("/2018-06-01/runtime/init/error", std::string(1001, 'x')).status, 413);
  HttpClient waits(address);
  waits.Send(absl::StrCat(
      "POST /2018-06-01/runtime/init/error HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 300\r\n\r\n"));
  one.Send(std::string(800, 'y'));
  EXPECT_EQ(one.Read().status, 202);
  EXPECT_EQ(waits.Read().status, 100);
  waits.Send(std::string(300, 'x'));
  EXPECT_EQ(waits.Read().status, 202);
}

TEST_P(RuntimeApiConnectionsTest, AnAnswerForWhichThereIsNoRoomWaitsForIt) {
  const RuntimeApi::Options options = WithBodiesOfOwner(1000);
  Start(options);
  TestAddress address(GetParam());
  auto recorder = std::make_shared<Recorder>();
  auto neighbour = RuntimeApi::Start(threads_, address.TakeListener(), options, recorder);
  ASSERT_TRUE(neighbour.ok()) << neighbour.status();
  HttpClient one(address_), other(address);
  const std::string id = Invoke("1");
  Invocation second;
  second.request_id = "second";
  second.payload = std::make_shared<const std::string>("2");
  (*neighbour)->Invoke(std::move(second));
  one.Get(kNext);
  other.Get(kNext);
  one.Send(absl::StrCat("POST ", ResponsePath(id),
                        " HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 800\r\n\r\n"));
  EXPECT_EQ(one.Read().status, 100);
  other.Send(absl::StrCat("POST ", ResponsePath("second"), " HTTP/1.1\r\nContent-Length: 800\r\n\r\n",
                          std::string(800, 'z')));
  EXPECT_EQ(HttpClient(address).Get("/").status, 404);  // by then it has been seen, most likely
  one.Send(std::string(800, 'y'));
  EXPECT_EQ(one.Read().status, 202);
  EXPECT_EQ(other.Read().status, 202);
  EXPECT_EQ(recorder_->WaitForAnswer(1).second.body, std::string(800, 'y'));
  EXPECT_EQ(recorder->WaitForAnswer(1).second.body, std::string(800, 'z'));
}

// Its length is not told, so it has some room when there is no more.
TEST_P(RuntimeApiConnectionsTest, AnAnswerThatFindsNoMoreRoomEndsItsInvocation) {
  RuntimeApi::Options options = WithBodiesOfOwner(100 << 10);
  Start(options);
  const std::string id = Invoke("1");
  HttpClient runtime(address_);
  runtime.Get(kNext);
  runtime.Send(absl::StrCat("POST ", ResponsePath(id), " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                            absl::Hex(80 << 10), "\r\n", std::string(80 << 10, 'y'), "\r\n0\r\n\r\n"));
  EXPECT_EQ(runtime.Read().status, 413);
  const Answer answer = recorder_->WaitForAnswer(1).second;
  EXPECT_TRUE(answer.failed);
  EXPECT_EQ(answer.error_type, "Function.NoRoomForResponse");
  // It is not given out again.
  Invoke("2");
  EXPECT_EQ(HttpClient(address_).Get(kNext).body, "2");
}

// Its invocation has gone meanwhile: none is there, or another one that it has nothing to do with.
TEST_P(RuntimeApiConnectionsTest, AnAnswerThatComesTooLateAndFindsNoMoreRoomEndsNoOtherInvocation) {
  Start(WithBodiesOfOwner(100 << 10));
  for (const bool another : {false, true}) {
    const std::string late = Invoke("1");
    HttpClient sends(address_);
    EXPECT_EQ(sends.Get(kNext).body, "1");
    sends.Send(absl::StrCat("POST ", ResponsePath(late),
                            " HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"));
    EXPECT_EQ(sends.Read().status, 100);
    api_->Abandon(late);
    std::string next;
    HttpClient runtime(address_);
    if (another) {
      next = Invoke("2");
      EXPECT_EQ(runtime.Get(kNext).body, "2");
    } else {
      EXPECT_EQ(runtime.Get("/2018-06-01/runtime/restore/next").status, 200);  // by then it is abandoned
    }
    sends.Send(absl::StrCat(absl::Hex(80 << 10), "\r\n", std::string(80 << 10, 'y'), "\r\n0\r\n\r\n"));
    EXPECT_EQ(sends.Read().status, 413);
    if (!another) continue;
    EXPECT_EQ(runtime.Post(ResponsePath(next), "fine").status, 202);
    const auto [id, answer] = recorder_->WaitForAnswer(1);
    EXPECT_EQ(id, next);
    EXPECT_FALSE(answer.failed) << answer.body;
    EXPECT_EQ(answer.body, "fine");
  }
}

// Who still sends an answer that nobody wants keeps nobody from answering what came after.
TEST_P(RuntimeApiConnectionsTest, AnAnswerThatComesTooLateDoesNotHoldUpTheNext) {
  Start();
  const std::string late = Invoke("1");
  HttpClient sends(address_), runtime(address_);
  EXPECT_EQ(sends.Get(kNext).body, "1");
  sends.Send(absl::StrCat("POST ", ResponsePath(late),
                          " HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 300\r\n\r\n"));
  EXPECT_EQ(sends.Read().status, 100);
  api_->Abandon(late);
  const std::string next = Invoke("2");
  EXPECT_EQ(runtime.Get(kNext).body, "2");
  EXPECT_EQ(runtime.Post(ResponsePath(next), "fine").status, 202);
  EXPECT_EQ(recorder_->WaitForAnswer(1).second.body, "fine");
  sends.Send(std::string(300, 'y'));
  EXPECT_EQ(sends.Read().status, 400);
}

TEST_P(RuntimeApiConnectionsTest, AnUploadThatBreaksOffLeavesTheInvocationToAnother) {
  Start();
  std::string id = Invoke("1");
  HttpClient runtime(address_);
  runtime.Get(kNext);
  runtime.Send(absl::StrCat("POST ", ResponsePath(id), " HTTP/1.1\r\nContent-Length: 300\r\n\r\na"));
  runtime.Reset();
  HttpReply reply;
  const Deadline seen(kSeesTheEndWithin);
  do {  // until the server has seen the end
    HttpClient again(address_);
    EXPECT_EQ(again.Get(kNext).body, "1");
    reply = again.Post(ResponsePath(id), "whole");
  } while (reply.status == 403 && !seen.passed());
  EXPECT_EQ(reply.status, 202);
  EXPECT_EQ(recorder_->WaitForAnswer(1).second.body, "whole");
}

TEST_P(RuntimeApiConnectionsTest, AnInvocationGoesToTheConnectionThatIsStillThere) {
  Start();
  for (size_t i = 1; i <= 20; ++i) {
    HttpClient gone(address_);
    gone.Send(NextRequest());
    EXPECT_THAT(recorder_->WaitForNotes(1), ElementsAre("ready"));
    gone.Close();
    HttpClient there(address_);
    // Both wait when the invocation comes; over TCP one can't know when the end is seen, so there it comes
    // first.
    std::string id;
    if (GetParam() == TestAddress::kTcp) id = Invoke("1");
    there.Send(absl::StrCat("GET /2018-06-01/runtime/restore/next HTTP/1.1\r\n\r\n", NextRequest()));
    EXPECT_EQ(there.Read().body, "{}");
    if (GetParam() == TestAddress::kUnix) id = Invoke("1");
    EXPECT_EQ(there.Read().body, "1");
    EXPECT_EQ(there.Post(ResponsePath(id), "").status, 202);
    EXPECT_EQ(recorder_->WaitForAnswer(i).first, id);
  }
}

TEST_P(RuntimeApiConnectionsTest, ConnectionsThatMayNotOrAreTooManyAreClosed) {
  int asked = 0;
  Start({.may_connect = [&](int connection) { return connection >= 0 && ++asked > 1; },
         .limits = {.connections = 2}});
  HttpClient refused(address_);
  EXPECT_TRUE(refused.ReadEnd());
  HttpClient first(address_), second(address_);
  EXPECT_EQ(first.Get("/2018-06-01/runtime/restore/next").status, 200);
  EXPECT_EQ(second.Get("/2018-06-01/runtime/restore/next").status, 200);
  HttpClient third(address_);
  EXPECT_TRUE(third.ReadEnd());
  second.Close();
  HttpReply reply;
  do {  // until the server has seen the end
    HttpClient another(address_);
    reply = another.Get("/2018-06-01/runtime/restore/next");
  } while (reply.status == 0);
  EXPECT_EQ(reply.status, 200);
}

TEST_P(RuntimeApiConnectionsTest, SlowRequestsAreGivenUp) {
  Start({.limits = {.head_time = absl::Milliseconds(20),
                    .body_time = absl::Milliseconds(20),
                    .idle_time = absl::InfiniteDuration()}});
  HttpClient idle(address_);
  EXPECT_EQ(idle.Get("/2018-06-01/runtime/restore/next").status, 200);
  HttpClient head(address_), body(address_);
  head.Send("GET /2018-06-01");
  body.Send("POST /2018-06-01/runtime/init/error HTTP/1.1\r\nContent-Length: 10\r\n\r\n12345");
  EXPECT_TRUE(head.ReadEnd());
  EXPECT_TRUE(body.ReadEnd());
  EXPECT_EQ(idle.Get("/2018-06-01/runtime/restore/next").status, 200);
}

TEST_P(RuntimeApiConnectionsTest, ARuntimeThatDoesNotReadIsGivenUp) {
  Start({.limits = {.connections = 1, .write_time = absl::Milliseconds(20)}});
  HttpClient stuck(address_);
  stuck.Send(NextRequest());
  recorder_->WaitForNotes(1);
  Invoke(std::string(kLargestPayload, 'p'));
  HttpReply reply;
  do {  // until it is closed
    HttpClient other(address_);
    reply = other.Get("/2018-06-01/runtime/restore/next");
  } while (reply.status == 0);
  EXPECT_EQ(reply.status, 200);
}

TEST_P(RuntimeApiConnectionsTest, CloseEndsWaitingConnections) {
  Start();
  HttpClient waiting(address_), idle(address_);
  waiting.Send(NextRequest());
  EXPECT_EQ(idle.Get("/2018-06-01/runtime/restore/next").status, 200);
  recorder_->WaitForNotes(1);
  api_->Close();
  EXPECT_TRUE(waiting.ReadEnd());
  EXPECT_TRUE(idle.ReadEnd());
  Invoke("1");
  api_->Abandon("1");
  api_.reset();
  EXPECT_EQ(recorder_->answers(), 0u);
}

TEST_P(RuntimeApiConnectionsTest, ASocketThatDoesNotListenIsRefused) {
  auto api = RuntimeApi::Start(threads_, address_.Connect(), {}, recorder_);
  EXPECT_EQ(api.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(RuntimeApi::Start(threads_, UniqueFd(), {}, recorder_).ok());
}

}  // namespace
}  // namespace rekindle::functions
