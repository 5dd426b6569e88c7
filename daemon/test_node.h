// Nodes of tests, with all that they have below one folder.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/file.h"
#include "daemon/node.h"

namespace rekindle::daemon {

inline NodeOptions TestNodeOptions(const std::string& folder) {
  NodeOptions options;
  options.store = folder + "/store";
  options.runtime_directory = folder + "/run";
  options.log_directory = folder + "/log";
  return options;
}

// In a folder of its own, which goes with it. There is no store yet.
class TestNode {
 public:
  // `adjust`: what else is to be said of it.
  explicit TestNode(const std::function<void(NodeOptions&)>& adjust = nullptr)
      : folder_(TemporaryDirectory::Make("/tmp", "rk-node-").value()), node_(OptionsIn(folder_, adjust)) {
    EXPECT_TRUE(MakeDirectories(node_.options().runtime_directory, 0700).ok());
  }

  Node& operator*() { return node_; }
  Node* operator->() { return &node_; }
  const Node* operator->() const { return &node_; }
  const std::string& folder() const { return folder_.path(); }

 private:
  static NodeOptions OptionsIn(const TemporaryDirectory& folder,
                               const std::function<void(NodeOptions&)>& adjust) {
    NodeOptions options = TestNodeOptions(folder.path());
    if (adjust) adjust(options);
    return options;
  }

  const TemporaryDirectory folder_;
  Node node_;
};

}  // namespace rekindle::daemon
