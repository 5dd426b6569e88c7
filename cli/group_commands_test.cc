#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "rekindle/v1/group.grpc.pb.h"

namespace rekindle::cli {
namespace {

using ::testing::HasSubstr;

// Of two members, that is told in between.
class TwoMembersService final : public v1::Groups::Service {
 public:
  grpc::Status CheckpointGroup(grpc::ServerContext*, const v1::CheckpointGroupRequest* request,
                               grpc::ServerWriter<v1::GroupEvent>* writer) override {
    v1::GroupEvent event;
    for (const uint32_t member : {1u, 0u}) {
      event.mutable_member()->set_member(member);
      event.mutable_member()->set_state("frozen");
      writer->Write(event);
    }
    if (request->reference() != "silent:1") {
      event.mutable_result()->mutable_group()->set_reference(request->reference());
      writer->Write(event);
    }
    return grpc::Status::OK;
  }
  grpc::Status RestoreGroup(grpc::ServerContext*, const v1::RestoreGroupRequest* request,
                            grpc::ServerWriter<v1::GroupEvent>* writer) override {
    v1::GroupEvent event;
    event.mutable_member()->set_member(0);
    event.mutable_member()->set_state("ready");
    writer->Write(event);
    event.mutable_restored()->mutable_group()->set_reference(request->reference());
    writer->Write(event);
    return grpc::Status::OK;
  }
};

class GroupCommandsTest : public ::testing::Test {
 protected:
  GroupCommandsTest() {
    Endpoint endpoint;
    endpoint.host = "unix:" + folder_.path() + "/socket";
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.AddListeningPort(endpoint.host, grpc::InsecureServerCredentials());
    server_ = builder.BuildAndStart();
    client_ = Client::Open(endpoint).value();
  }
  ~GroupCommandsTest() override { server_->Shutdown(); }

  // What `command` draws where standard error is a terminal.
  template <typename Command>
  std::string DrawnBy(Command command, int* code) {
    int master = -1, terminal = -1;
    EXPECT_EQ(::openpty(&master, &terminal, nullptr, nullptr, nullptr), 0);
    const UniqueFd reader(master), drawn_on(terminal), before(::dup(STDERR_FILENO));
    std::fflush(stderr);
    ::dup2(drawn_on.get(), STDERR_FILENO);
    ::testing::internal::CaptureStdout();
    *code = command();
    out_ = ::testing::internal::GetCapturedStdout();
    std::fflush(stderr);
    ::dup2(before.get(), STDERR_FILENO);
    ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    std::string drawn;
    char buffer[4096];
    for (ssize_t n; (n = ::read(reader.get(), buffer, sizeof(buffer))) > 0;)
      drawn.append(buffer, static_cast<size_t>(n));
    return drawn;
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk-group-").value();
  TwoMembersService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
  std::string out_;
};

TEST_F(GroupCommandsTest, HowFarTheMembersAreIsDrawn) {
  Interrupts interrupts;
  const Output output(/*json=*/false, /*verbose=*/false);
  v1::CheckpointGroupRequest request;
  request.set_reference("train:1");
  for (const char* job : {"a", "b"}) request.add_members()->set_job(job);
  int code = kFailed;
  const std::string drawn =
      DrawnBy([&] { return CheckpointGroup(*client_, output, interrupts, request); }, &code);
  EXPECT_EQ(code, kDone);
  EXPECT_THAT(drawn, HasSubstr("1 of 2 members frozen"));
  EXPECT_THAT(drawn, HasSubstr("2 of 2 members frozen"));
  EXPECT_THAT(drawn, ::testing::EndsWith("\r\x1b[K")) << "the bar is gone";
  EXPECT_THAT(out_, HasSubstr("group train:1"));

  v1::RestoreGroupRequest restore;
  restore.set_reference("train:1");
  EXPECT_THAT(DrawnBy([&] { return RestoreGroup(*client_, output, interrupts, restore); }, &code),
              HasSubstr("1 member ready"));
  EXPECT_EQ(code, kDone);
}

TEST_F(GroupCommandsTest, ACallThatEndsWithoutAResultHasFailed) {
  Interrupts interrupts;
  const Output output(/*json=*/false, /*verbose=*/false);
  v1::CheckpointGroupRequest request;
  request.set_reference("silent:1");
  int code = kDone;
  EXPECT_THAT(DrawnBy([&] { return CheckpointGroup(*client_, output, interrupts, request); }, &code),
              HasSubstr("without a result"));
  EXPECT_EQ(code, kFailed);
}

}  // namespace
}  // namespace rekindle::cli
