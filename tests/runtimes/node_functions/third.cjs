exports.handler = async () => 'cjs';
