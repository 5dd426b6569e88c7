// Who calls the HTTP front: how many they may be, what each may take, what happens when they go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/test_eventually.h"
#include "functions/invoke_api_for_tests.h"
#include "nlohmann/json.hpp"

namespace rekindle::functions {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_P(InvokeApiTest, WhatIsReadAtATimeIsLimited) {
  Start({.limits = {.bodies = 1000}});
  HttpClient first(address_), second(address_);
  first.Send(absl::StrCat("POST ", InvokePath("f"),
                          " HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 600\r\n\r\n"));
  EXPECT_EQ(first.Read().status, 100);
  HttpReply reply = second.Post(InvokePath("f"), std::string(600, '1'));
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers["x-amzn-errortype"], "ServiceUnavailableException");
  EXPECT_EQ(api_->refusals().bodies, 1u);
  first.Send(std::string(600, '1'));
  EXPECT_EQ(first.Read().status, 200);
  HttpClient third(address_);
  EXPECT_EQ(third.Post(InvokePath("f"), std::string(600, '1')).status, 200);
}

TEST_P(InvokeApiTest, OneCallerHasAShareOfWhatIsReadAtATime) {
  std::atomic<const char*> caller{
      "a"};  // of the next connection; the empty one is root's, who takes no share
  Start({.identify = [&caller](const Peer&) -> absl::StatusOr<std::any> {
           return std::any(std::string(caller.load()));
         },
         .share_of =
             [](const Peer&, const absl::StatusOr<std::any>& identity) {
               return std::any_cast<std::string>(*identity);
             },
         .limits = {.bodies = 10'000, .bodies_of_one = 1000}});
  const std::string head = absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\n");
  const std::string announced = absl::StrCat(head, "Expect: 100-continue\r\nContent-Length: 600\r\n\r\n");
  const std::string body(600, '1');
  HttpClient first(address_);
  EXPECT_EQ(first.Ask(announced).status, 100);
  HttpClient second(address_);
  HttpReply reply = second.Ask(announced);
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers["x-amzn-errortype"], "TooManyRequestsException");
  EXPECT_THAT(reply.body, HasSubstr("those of a that are being read may have 1000 B"));
  EXPECT_TRUE(second.ReadEnd());
  // What comes in pieces has more room at first than a share is here.
  EXPECT_EQ(HttpClient(address_).Ask(absl::StrCat(head, "Transfer-Encoding: chunked\r\n\r\n")).status, 429);
  caller = "b";
  EXPECT_EQ(HttpClient(address_).Post(InvokePath("f"), body).status, 200);
  caller = "";
  EXPECT_EQ(HttpClient(address_).Post(InvokePath("f"), std::string(2000, '1')).status, 200);
  EXPECT_EQ(api_->refusals().bodies_of_one, 2u);
  EXPECT_EQ(api_->refusals().bodies, 0u);
  // What has been read counts no more, nor what will not be.
  caller = "a";
  EXPECT_EQ(first.Ask(body).status, 200);
  EXPECT_EQ(first.Ask(announced).status, 100);
  first.Close();
  do {  // until the server has seen the end
    reply = HttpClient(address_).Ask(absl::StrCat(announced, body));
  } while (reply.status == 429);
  EXPECT_EQ(reply.status, 200);
}

TEST_P(InvokeApiTest, WhatComesInPiecesTakesRoomAsItComes) {
  // Less than any two requests could need that may have the largest body there is.
  Start({.identify = [](const Peer&) -> absl::StatusOr<std::any> { return std::any(std::string("a")); },
         .share_of = [](const Peer&, const absl::StatusOr<std::any>&) { return std::string("a"); },
         .limits = {.bodies_of_one = 1 << 20}});
  const std::string head = absl::StrCat(
      "POST ", InvokePath("f"), " HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
  auto chunk = [](size_t size) {
    return absl::StrCat(absl::Hex(size), "\r\n\"", std::string(size - 2, 'x'), "\"\r\n");
  };
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(clients.emplace_back(std::make_unique<HttpClient>(address_))->Ask(head).status, 100);
  }
  for (auto& client : clients) {
    HttpReply reply = client->Ask(chunk(100) + "0\r\n\r\n");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body.size(), 100u);
  }
  EXPECT_EQ(clients[0]->Ask(head).status, 100);
  EXPECT_EQ(clients[0]->Ask(chunk(500'000) + "0\r\n\r\n").body.size(), 500'000u);
  EXPECT_EQ(api_->refusals().bodies_of_one, 0u);
  EXPECT_EQ(clients[0]->Ask(head).status, 100);
  HttpReply reply = clients[0]->Ask(chunk(2'000'000));
  EXPECT_EQ(reply.status, 429);
  EXPECT_THAT(reply.body, HasSubstr("Too many large requests"));
  EXPECT_EQ(api_->refusals().bodies_of_one, 1u);
  // It has given back what it had.
  EXPECT_EQ(clients[1]->Post(InvokePath("f"), absl::StrCat("\"", std::string(1'000'000, 'x'), "\"")).status,
            200);
}

TEST_P(InvokeApiTest, CallersThatLeaveDisturbNobody) {
  Start();
  struct Open {
    absl::Mutex mutex;
    std::vector<Invoker::Done> calls;
  };
  auto open = std::make_shared<Open>();  // some may come when the test has ended
  invoker_->Become([open](InvokeRequest, Invoker::Done done) {
    absl::MutexLock lock(&open->mutex);
    open->calls.push_back(std::move(done));
  });
  for (int i = 0; i < 50; ++i) {
    HttpClient client(address_);
    client.Send(absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\nContent-Length: 1\r\n\r\n1"));
    if (i % 2 == 0) client.Reset();
  }
  {
    // A connection that is reset before its request is read never gets so far; those that were closed do.
    absl::MutexLock lock(&open->mutex);
    auto enough = [&] { return open->calls.size() >= 25; };
    open->mutex.Await(absl::Condition(&enough));
    for (Invoker::Done& done : open->calls) done(InvokeResult{});
    open->calls.clear();
  }
  invoker_->Become([](InvokeRequest, Invoker::Done done) { done(ResultOf("7")); });
  HttpClient client(address_);
  EXPECT_EQ(client.Post(InvokePath("f"), "1").body, "7");
}

TEST_P(InvokeApiTest, ItIsKnownThatACallerHasGone) {
  Start();
  std::promise<InvokeRequest> begun[2];
  std::atomic<int> calls{0};
  invoker_->Become(
      [&](InvokeRequest request, Invoker::Done) { begun[calls++].set_value(std::move(request)); });
  const std::string request =
      absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\nContent-Length: 1\r\n\r\n1");
  HttpClient closes(address_), ends(address_);
  closes.Send(request);
  InvokeRequest closed = begun[0].get_future().get();
  ends.Send(request);
  InvokeRequest ended = begun[1].get_future().get();
  EXPECT_FALSE(closed.gone());
  closes.Close();
  ASSERT_TRUE(Eventually([&] { return closed.gone(); }));
  EXPECT_FALSE(ended.gone());
  ends.EndSending();  // over TCP nothing tells it from the other
  ASSERT_TRUE(Eventually([&] { return ended.gone(); }));
}

TEST_P(InvokeApiTest, FindingOutWhoConnectsHoldsUpNobodyWhoIsConnected) {
  absl::Notification asked, found;
  std::atomic<int> connected{0};
  threads_ = std::make_unique<HttpThreads>(1);
  Start({.identify = [&](const Peer&) -> absl::StatusOr<std::any> {
    if (++connected == 2) {
      asked.Notify();
      found.WaitForNotification();
    }
    return std::any(std::string("somebody"));
  }});
  HttpClient first(address_);
  EXPECT_EQ(first.Post(InvokePath("f"), "1").status, 200);
  HttpClient second(address_);
  asked.WaitForNotification();
  EXPECT_EQ(first.Post(InvokePath("f"), "2").status, 200);
  found.Notify();
  EXPECT_EQ(second.Post(InvokePath("f"), "3").status, 200);
}

TEST_P(InvokeApiTest, WhoTheCallerIs) {
  std::vector<Peer> peers;
  absl::Mutex mutex;
  Start({.identify = [&](const Peer& peer) -> absl::StatusOr<std::any> {
    absl::MutexLock lock(&mutex);
    peers.push_back(peer);
    if (peers.size() == 2) return absl::PermissionDeniedError("user 7 may not");
    return std::string(peers.size() == 1 ? "somebody" : "nobody");
  }});
  HttpClient client(address_);
  EXPECT_EQ(client.Post(InvokePath("f"), "1").status, 200);
  EXPECT_EQ(client.Post(InvokePath("f"), "1").status, 200);
  EXPECT_EQ(std::any_cast<std::string>(invoker_->last().identity), "somebody");
  HttpClient refused(address_);
  HttpReply reply = refused.Post(InvokePath("f"), "1");
  EXPECT_EQ(reply.status, 403);
  EXPECT_EQ(reply.headers["x-amzn-errortype"], "AccessDeniedException");
  EXPECT_EQ(json::parse(reply.body)["Message"], "user 7 may not");
  EXPECT_EQ(refused.Get("/2015-03-31/functions/").status, 403);
  EXPECT_EQ(refused.Get("/health").status, 200);
  HttpClient nobody(address_);
  EXPECT_EQ(nobody.Get("/2015-03-31/functions/").status, 403);
  absl::MutexLock lock(&mutex);
  ASSERT_EQ(peers.size(), 3u);
  EXPECT_EQ(peers[0].unix_socket, GetParam() == TestAddress::kUnix);
  EXPECT_GE(peers[0].socket, 0);
  if (GetParam() == TestAddress::kTcp) {
    EXPECT_THAT(peers[0].remote_address, StartsWith("127.0.0.1:"));
    EXPECT_EQ(peers[0].local_address, peers[1].local_address);
    EXPECT_NE(peers[0].remote_address, peers[1].remote_address);
  } else {
    EXPECT_EQ(peers[0].remote_address, "");
  }
}

TEST_P(InvokeApiTest, TooManyConnectionsAreTold) {
  Start({.limits = {.connections = 1}});
  HttpClient first(address_);
  EXPECT_EQ(first.Get("/health").status, 200);
  // Also those that send more than fits into a socket's buffers before they read.
  for (size_t size : {10, 3'000'000}) {
    HttpClient second(address_);
    EXPECT_TRUE(second.Send(absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\nContent-Length: ", size,
                                         "\r\n\r\n", std::string(size, '1'))));
    HttpReply reply = second.Read();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.headers["x-amzn-errortype"], "ServiceUnavailableException");
    EXPECT_TRUE(second.ReadEnd());
  }
  EXPECT_EQ(api_->refusals().connections, 2u);
  // They take nobody's place.
  EXPECT_EQ(first.Get("/health").status, 200);
  first.Close();
  HttpReply reply;
  do {  // until the server has seen the end
    reply = HttpClient(address_).Get(kListPath);
  } while (reply.status == 503);
  EXPECT_EQ(reply.status, 200);
}

TEST_P(InvokeApiTest, ANodeWithoutAConnectionLeftIsHealthyAllTheSame) {
  std::atomic<bool> root{false};
  Start({.share_of = [&root](const Peer&, const absl::StatusOr<std::any>&) { return root ? "" : "a"; },
         .limits = {.connections = 2, .connections_of_one = 1}});
  HttpClient first(address_);
  EXPECT_EQ(first.Get(kListPath).status, 200);
  auto check = [this](int refused) {
    EXPECT_EQ(HttpClient(address_).Get(kListPath).status, refused);
    HttpClient asks(address_);
    EXPECT_EQ(asks.Get("/health").status, 200);
    EXPECT_TRUE(asks.ReadEnd());  // it has no place
  };
  check(429);
  root = true;
  HttpClient second(address_);
  EXPECT_EQ(second.Get(kListPath).status, 200);
  check(503);
  api_->TakeNoMore();
  EXPECT_EQ(HttpClient(address_).Get("/health").status, 503);
}

TEST_P(InvokeApiTest, OfManyThatAreRefusedTheOneThatWaitsLongestIsToldAtOnce) {
  Start({.limits = {.connections = 1}});
  HttpClient first(address_);
  EXPECT_EQ(first.Get("/health").status, 200);
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 64; ++i) silent.push_back(std::make_unique<HttpClient>(address_));
  // Each is told when it has said something; of one more than may wait for that the first one before.
  HttpClient beyond(address_);
  EXPECT_EQ(silent[0]->Read().status, 503);
  EXPECT_TRUE(silent[0]->ReadEnd());
  EXPECT_EQ(beyond.Get("/health").status, 200);
  for (size_t i = 1; i < silent.size(); ++i) EXPECT_EQ(silent[i]->Get(kListPath).status, 503);
}

TEST_P(InvokeApiTest, OneCallerHasAShareOfTheConnections) {
  std::atomic<int> connected{0};
  // The fifth is root's, who takes nobody's share; "b" comes after that.
  Start({.identify = [&connected](const Peer&) -> absl::StatusOr<std::any> {
           const int number = ++connected;
           return std::any(std::string(number == 5 ? "root" : number == 6 ? "b" : "a"));
         },
         .share_of =
             [](const Peer&, const absl::StatusOr<std::any>& identity) {
               const auto name = std::any_cast<std::string>(*identity);
               return name == "root" ? "" : name;
             },
         .limits = {.connections_of_one = 2}});
  std::vector<std::unique_ptr<HttpClient>> clients;
  auto connect = [&]() -> HttpClient& {
    return *clients.emplace_back(std::make_unique<HttpClient>(address_));
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(connect().Get("/health").status, 200);
  for (int i = 0; i < 2; ++i) {
    HttpClient& refused = connect();
    HttpReply reply = refused.Get(kListPath);
    EXPECT_EQ(reply.status, 429);
    EXPECT_EQ(reply.headers["x-amzn-errortype"], "TooManyRequestsException");
    EXPECT_THAT(reply.body, HasSubstr("a has 2"));
    EXPECT_TRUE(refused.ReadEnd());
  }
  EXPECT_EQ(connect().Get("/health").status, 200);
  EXPECT_EQ(connect().Get("/health").status, 200);
  EXPECT_EQ(api_->refusals().connections_of_one, 2u);
  EXPECT_EQ(api_->refusals().connections, 0u);
  // What was closed counts no more.
  clients[0]->Close();
  HttpReply reply;
  do {  // until the server has seen the end
    reply = connect().Get(kListPath);
  } while (reply.status == 429 || reply.status == 0);
  EXPECT_EQ(reply.status, 200);
}

TEST_P(InvokeApiTest, IdleConnectionsAreClosedWorkingOnesAreNot) {
  Start({.limits = {.idle_time = absl::Milliseconds(20)}});
  std::promise<Invoker::Done> invoked;
  invoker_->Become([&](InvokeRequest, Invoker::Done done) { invoked.set_value(std::move(done)); });
  HttpClient working(address_);
  working.Send(absl::StrCat("POST ", InvokePath("f"), " HTTP/1.1\r\nContent-Length: 1\r\n\r\n1"));
  HttpClient idle(address_);
  EXPECT_TRUE(idle.ReadEnd());
  invoked.get_future().get()(ResultOf("1"));
  EXPECT_EQ(working.Read().status, 200);
}

}  // namespace
}  // namespace rekindle::functions
