#include "base/host_port.h"

#include <gtest/gtest.h>

namespace rekindle {
namespace {

TEST(HostPortTest, HostAndPort) {
  for (const char* address :
       {"localhost:1", "node-b:7443", "10.0.0.1:65535", "[::1]:7443", "[fe80::1%eth0]:80"}) {
    EXPECT_TRUE(CheckHostPort(address, AddressUse::kConnect).ok()) << address;
    EXPECT_TRUE(CheckHostPort(address, AddressUse::kListen).ok()) << address;
  }
}

TEST(HostPortTest, WhatLibrariesWouldTakeForAnotherAddress) {
  for (const char* address :
       {"", "localhost", "7443", "localhost:", "localhost:99999", "localhost:65536", "localhost:4294967297",
        "localhost:-1", "localhost:+1", "localhost: 1", "localhost:1 ", "localhost:https", "::1", "::1:7443",
        "[::1]", "[]:1", "[::1]x:1", "http://node:1", "no de:1"}) {
    for (const AddressUse use : {AddressUse::kConnect, AddressUse::kListen})
      EXPECT_TRUE(absl::IsInvalidArgument(CheckHostPort(address, use))) << address;
  }
}

TEST(HostPortTest, AsGrpcWritesIt) {
  EXPECT_TRUE(CheckHostPort("dns:///node-b:7443", AddressUse::kConnect).ok());
  EXPECT_FALSE(CheckHostPort("dns:///node-b", AddressUse::kConnect).ok());
  EXPECT_FALSE(CheckHostPort("dns:///node-b:7443", AddressUse::kListen).ok());
}

TEST(HostPortTest, ForListeningAllAddressesAndAnyPort) {
  for (const char* address : {":7443", "localhost:0", "[::]:0", ":0"}) {
    EXPECT_TRUE(CheckHostPort(address, AddressUse::kListen).ok()) << address;
    EXPECT_FALSE(CheckHostPort(address, AddressUse::kConnect).ok()) << address;
  }
}

}  // namespace
}  // namespace rekindle
