// Signs, and waits after each signature in a function of its own.
const c = require('crypto'), fs = require('fs'), data = Buffer.from('message');
const keys = c.generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
const cell = new Int32Array(new SharedArrayBuffer(4));
function pauseInService() { Atomics.wait(cell, 0, 0, 1); }
function signRequest() {
    const signature = c.sign('sha256', data, keys.privateKey);
    pauseInService();
    return signature;
}
function serveRequests(count) {
    let bytes = 0;
    for (let i = 0; i < count; i++) bytes += signRequest().length;
    return bytes;
}
console.log('ready');
fs.readSync(0, Buffer.alloc(1));
serveRequests(1000);
console.log('done');
fs.readSync(0, Buffer.alloc(1));
